// SPDX-License-Identifier: Apache-2.0

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.ServiceUrlProvider;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.AutoClusterFailover;
import org.apache.pulsar.client.impl.ControlledClusterFailover;
import org.apache.pulsar.client.impl.SameAuthParamsLookupAutoClusterFailover;
import org.apache.pulsar.common.policies.data.SubscriptionStats;

/** Clients that move to another region by themselves, with their consumers and producers. */
final class Following extends Checks {
    private final Region east;
    private final Region west;

    Following(Region east, Region west) {
        this.east = east;
        this.west = west;
    }

    /** A client that asks over HTTP which region to use: a move that an operator decides, there and back. */
    void controlled() throws Exception {
        AtomicReference<String> chosen = new AtomicReference<>(east.serviceUrl());
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            byte[] body = ("{\"serviceUrl\": \"" + chosen.get() + "\"}").getBytes();
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        ServiceUrlProvider provider = ControlledClusterFailover.builder().defaultServiceUrl(east.serviceUrl())
                .urlProvider("http://127.0.0.1:" + server.getAddress().getPort() + "/")
                .checkInterval(100, MILLISECONDS).build();
        String topic = Moves.TOPICS + "controlled";
        east.admin().topics().createPartitionedTopic(topic, 2);
        List<String> partitions = List.of(topic + "-partition-0", topic + "-partition-1");
        try (PulsarClient client = client(provider); Walk walk = new Walk(client, partitions, topic)) {
            walk.workIn(east);
            chosen.set(west.serviceUrl());
            walk.workIn(west);
            chosen.set(east.serviceUrl());
            walk.workIn(east);
            walk.end();
        } finally {
            server.stop(0);
        }
    }

    /** A client that goes to the second region when the first does not answer, and back once it does. */
    static PulsarClient automatic(Region first, Region second) throws Exception {
        return client(AutoClusterFailover.builder().primary(first.serviceUrl()).secondary(List.of(second.serviceUrl()))
                .failoverDelay(200, MILLISECONDS).switchBackDelay(200, MILLISECONDS).checkInterval(100, MILLISECONDS)
                .build());
    }

    /** A client that tries a lookup in every region, and goes to the first one that answers. */
    static PulsarClient looking(Region first, Region second) throws Exception {
        return client(SameAuthParamsLookupAutoClusterFailover.builder()
                .pulsarServiceUrlArray(new String[] {first.serviceUrl(), second.serviceUrl()})
                .failoverThreshold(2).recoverThreshold(2).checkHealthyIntervalMs(200).build());
    }

    private static PulsarClient client(ServiceUrlProvider provider) throws Exception {
        return PulsarClient.builder().serviceUrlProvider(provider).maxBackoffInterval(500, MILLISECONDS).build();
    }

    /**
     * One producer, and one consumer each on Shared, Failover with individual acknowledgements, and Key_Shared, which
     * are never closed. In each region ten messages are published; every third stays open, and the others are
     * acknowledged with a receipt. Wherever the client is next, exactly the open ones come again.
     */
    static final class Walk implements AutoCloseable {
        private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();
        private final Producer<byte[]> producer;
        private final List<String> parts;
        private List<Integer> owed = new ArrayList<>();
        private int published;

        /** The parts are the topic's partitions, or the topic itself. */
        Walk(PulsarClient client, List<String> parts, String topic) throws Exception {
            this.parts = parts;
            producer = client.newProducer().topic(topic).enableBatching(false).create();
            for (SubscriptionType kind : List.of(SubscriptionType.Shared, SubscriptionType.Failover,
                    SubscriptionType.Key_Shared)) {
                consumers.put(kind.name(), Moves.replicated(client, topic).subscriptionName(kind.name())
                        .subscriptionType(kind).isAckReceiptEnabled(true).subscribe());
            }
        }

        /** Waits until the client is in this region, then works there. */
        void workIn(Region region) throws Exception {
            connected(region, 1);
            for (int last = published + 10; published < last; published++) {
                producer.newMessage().key("key-" + published % 3).value(Integer.toString(published).getBytes()).send();
            }
            List<Integer> due = new ArrayList<>(owed);
            due.addAll(IntStream.range(published - 10, published).boxed().toList());
            owed = due.stream().filter(number -> number % 3 == 0).toList();
            for (Consumer<byte[]> consumer : consumers.values()) {
                List<Message<byte[]>> messages = take(consumer, due.size());
                equal(messages.stream().map(Checks::number).sorted().toList(), due);
                nothingComes(consumer);
                Moves.acknowledge(consumer, messages.stream().filter(message -> number(message) % 3 != 0).toList());
            }
        }

        /** Waits until the client is not in this region any more. */
        void hasLeft(Region region) throws Exception {
            connected(region, 0);
        }

        private void connected(Region region, int count) throws Exception {
            for (String subscription : consumers.keySet()) {
                for (String part : parts) {
                    becomes(count, "the consumers of " + subscription + " in " + region.name(), () -> {
                        SubscriptionStats stats = region.stats(part, subscription);
                        return stats == null ? 0 : stats.getConsumers().size();
                    });
                }
            }
        }

        /** The open messages are owed in whatever region is asked next. */
        void end() throws Exception {
            for (Consumer<byte[]> consumer : consumers.values()) {
                consumer.redeliverUnacknowledgedMessages();
                takeNumbers(consumer, owed);
            }
        }

        @Override
        public void close() throws Exception {
            producer.close();
            for (Consumer<byte[]> consumer : consumers.values()) {
                consumer.close();
            }
        }
    }
}
