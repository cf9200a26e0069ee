// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumers of one replicated subscription begin in one region and continue in another. Each kind of subscription has a
 * {@link Story} in two parts, which does not depend on what happens between them, a planned move or the death of the
 * region: what was acknowledged with a receipt does not come again, everything else does.
 */
final class Moves extends Checks {
    static final String TOPICS = "persistent://public/default/";

    private Moves() {}

    /** What happens before and after a move. The first part leaves its consumers open. */
    abstract static class Story {
        final String name;
        final String topic;
        final List<Consumer<byte[]>> open = new ArrayList<>();

        Story(String name, String suffix) {
            this.name = name;
            this.topic = TOPICS + name.replace(' ', '-') + suffix;
        }

        abstract void prepare(PulsarClient here) throws Exception;

        abstract void begin(PulsarClient here) throws Exception;

        abstract void goOn(PulsarClient there) throws Exception;

        /** For a consumer that is told when its acknowledgements are durable. */
        ConsumerBuilder<byte[]> builder(PulsarClient client, SubscriptionType kind) {
            return replicated(client, topic).subscriptionType(kind).isAckReceiptEnabled(true)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
        }

        Consumer<byte[]> subscribe(PulsarClient client, SubscriptionType kind) throws Exception {
            return opened(builder(client, kind).subscribe());
        }

        Consumer<byte[]> opened(Consumer<byte[]> consumer) {
            open.add(consumer);
            return consumer;
        }

        void leave() throws Exception {
            for (Consumer<byte[]> consumer : open) {
                consumer.close();
            }
            open.clear();
        }
    }

    /** The flag is all it takes. */
    static ConsumerBuilder<byte[]> replicated(PulsarClient client, String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s").replicateSubscriptionState(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    /** Acknowledges each message individually, and waits for the receipts. */
    static void acknowledge(Consumer<byte[]> consumer, Collection<Message<byte[]>> messages) throws Exception {
        CompletableFuture.allOf(messages.stream().map(consumer::acknowledgeAsync).toArray(CompletableFuture[]::new))
                .get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    /** Exactly these come, in this order, and are acknowledged cumulatively. */
    private static void takeInOrder(Consumer<byte[]> consumer, Collection<Integer> numbers) throws Exception {
        for (int number : numbers) {
            Message<byte[]> message = receive(consumer);
            equal(number(message), number);
            consumer.acknowledgeCumulative(message);
        }
        nothingComes(consumer);
    }

    static List<Story> stories(String suffix) {
        return List.of(new Delayed(suffix), new Shared(suffix), new KeyShared(suffix), new Failover(suffix),
                new Exclusive(suffix), new Batch(suffix), new Chunks(suffix));
    }

    private static final class Shared extends Story {
        Shared(String suffix) {
            super("shared out of order with nacks", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            publish(here, topic, 0, 30);
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> consumer = subscribe(here, SubscriptionType.Shared);
            List<Message<byte[]>> messages = take(consumer, 30);
            acknowledge(consumer, IntStream.range(5, 10).mapToObj(third -> messages.get(3 * third)).toList());
            acknowledge(consumer, IntStream.range(0, 5).mapToObj(third -> messages.get(3 * third)).toList());
            consumer.negativeAcknowledge(messages.get(1));
            consumer.negativeAcknowledge(messages.get(4));
            for (Message<byte[]> again : take(consumer, 2)) {
                equal(again.getRedeliveryCount(), 1);
                if (number(again) == 1) {
                    acknowledge(consumer, List.of(again));
                }
            }
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            List<Integer> owed = IntStream.range(2, 30).filter(number -> number % 3 != 0).boxed().toList();
            takeNumbers(subscribe(there, SubscriptionType.Shared), owed);
        }
    }

    /** Each of six keys has five messages; the first {@code k} of key {@code k} are acknowledged before the move. */
    private static final class KeyShared extends Story {
        private static final int KEYS = 6;

        KeyShared(String suffix) {
            super("key-shared in order", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            publishKeys(here, 0, 5 * KEYS);
        }

        private void publishKeys(PulsarClient client, int from, int to) throws Exception {
            try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
                for (int number = from; number < to; number++) {
                    producer.newMessage().key("key-" + number % KEYS).value(Integer.toString(number).getBytes()).send();
                }
            }
        }

        private Map<Integer, List<Integer>> takeAll(PulsarClient client, int count, boolean all) throws Exception {
            List<Consumer<byte[]>> two = List.of(subscribe(client, SubscriptionType.Key_Shared),
                    subscribe(client, SubscriptionType.Key_Shared));
            Map<Integer, List<Integer>> byKey = new HashMap<>();
            Map<Consumer<byte[]>, List<Message<byte[]>>> done = new HashMap<>();
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
            for (int taken = 0; taken < count && System.nanoTime() < until; ) {
                for (Consumer<byte[]> consumer : two) {
                    Message<byte[]> message = consumer.receive(10, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        taken++;
                        int key = number(message) % KEYS;
                        byKey.computeIfAbsent(key, none -> new ArrayList<>()).add(number(message) / KEYS);
                        if (all || number(message) / KEYS < key) {
                            done.computeIfAbsent(consumer, none -> new ArrayList<>()).add(message);
                        }
                    }
                }
            }
            for (Consumer<byte[]> consumer : two) {
                nothingComes(consumer);
                acknowledge(consumer, done.getOrDefault(consumer, List.of()));
            }
            return byKey;
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            takeAll(here, 5 * KEYS, false);
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            publishKeys(there, 5 * KEYS, 6 * KEYS);
            Map<Integer, List<Integer>> byKey = takeAll(there, 21, true);
            for (int key = 0; key < KEYS; key++) {
                equal(byKey.get(key), IntStream.range(key, 6).boxed().toList());
            }
        }
    }

    private static final class Failover extends Story {
        Failover(String suffix) {
            super("failover", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            publish(here, topic, 0, 20);
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> active = opened(builder(here, SubscriptionType.Failover).consumerName("a").subscribe());
            opened(builder(here, SubscriptionType.Failover).consumerName("b").subscribe());
            List<Message<byte[]>> messages = take(active, 20);
            active.acknowledgeCumulativeAsync(messages.get(7)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            acknowledge(active, List.of(messages.get(12), messages.get(10)));
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            Consumer<byte[]> active = opened(builder(there, SubscriptionType.Failover).consumerName("a").subscribe());
            takeInOrder(active, List.of(8, 9, 11, 13, 14, 15, 16, 17, 18, 19));
        }
    }

    private static final class Exclusive extends Story {
        Exclusive(String suffix) {
            super("exclusive cumulative", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            publish(here, topic, 0, 20);
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> consumer = subscribe(here, SubscriptionType.Exclusive);
            consumer.acknowledgeCumulativeAsync(take(consumer, 20).get(12)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            takeInOrder(subscribe(there, SubscriptionType.Exclusive), IntStream.range(13, 20).boxed().toList());
        }
    }

    /** R18: the messages of a batch that were acknowledged are so in every region. */
    private static final class Batch extends Story {
        Batch(String suffix) {
            super("a batch in part", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            try (Producer<byte[]> producer = here.newProducer().topic(topic)
                    .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
                List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                for (int number = 0; number < 10; number++) {
                    sent.add(producer.sendAsync(Integer.toString(number).getBytes()));
                }
                producer.flush();
                CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            }
        }

        @Override
        Consumer<byte[]> subscribe(PulsarClient client, SubscriptionType kind) throws Exception {
            return opened(builder(client, kind).enableBatchIndexAcknowledgment(true).subscribe());
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> consumer = subscribe(here, SubscriptionType.Shared);
            List<Message<byte[]>> messages = take(consumer, 10);
            acknowledge(consumer, messages.stream().filter(message -> number(message) % 3 == 1).toList());
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            takeNumbers(subscribe(there, SubscriptionType.Shared), List.of(0, 2, 3, 5, 6, 8, 9));
        }
    }

    /** R18: a chunked message is acknowledged as a whole. */
    private static final class Chunks extends Story {
        private final byte[][] bodies = new byte[3][50_000];

        Chunks(String suffix) {
            super("chunks", suffix);
            for (byte[] body : bodies) {
                new Random().nextBytes(body);
            }
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            try (Producer<byte[]> producer = here.newProducer().topic(topic).enableBatching(false)
                    .enableChunking(true).chunkMaxMessageSize(20_000).create()) {
                for (byte[] body : bodies) {
                    producer.send(body);
                }
            }
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> consumer = subscribe(here, SubscriptionType.Shared);
            List<Message<byte[]>> messages = take(consumer, 3);
            acknowledge(consumer, List.of(messages.get(1)));
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            Consumer<byte[]> consumer = subscribe(there, SubscriptionType.Shared);
            List<Message<byte[]>> messages = take(consumer, 2);
            equal(Arrays.equals(messages.get(0).getData(), bodies[0]), true);
            equal(Arrays.equals(messages.get(1).getData(), bodies[2]), true);
            acknowledge(consumer, messages);
            nothingComes(consumer);
        }
    }

    /** Even numbers come at once, odd ones when they are due, in either region. */
    private static final class Delayed extends Story {
        private static final int DELAY_MS = 10_000;
        private long due;

        Delayed(String suffix) {
            super("delayed", suffix);
        }

        @Override
        void prepare(PulsarClient here) throws Exception {
            try (Producer<byte[]> producer = here.newProducer().topic(topic).enableBatching(false).create()) {
                due = System.currentTimeMillis() + DELAY_MS;
                for (int number = 0; number < 10; number++) {
                    producer.newMessage().deliverAt(number % 2 == 0 ? 0 : due)
                            .value(Integer.toString(number).getBytes()).send();
                }
            }
        }

        @Override
        void begin(PulsarClient here) throws Exception {
            Consumer<byte[]> consumer = subscribe(here, SubscriptionType.Shared);
            List<Message<byte[]>> messages = take(consumer, 5);
            equal(messages.stream().map(Checks::number).sorted().toList(), List.of(0, 2, 4, 6, 8));
            acknowledge(consumer, messages.stream().filter(message -> number(message) % 4 == 0).toList());
        }

        @Override
        void goOn(PulsarClient there) throws Exception {
            Consumer<byte[]> consumer = subscribe(there, SubscriptionType.Shared);
            List<Integer> found = new ArrayList<>();
            for (Message<byte[]> message : take(consumer, 7)) {
                found.add(number(message));
                equal(number(message) % 2 == 0 || System.currentTimeMillis() >= due, true);
                consumer.acknowledge(message);
            }
            found.sort(null);
            equal(found, List.of(1, 2, 3, 5, 6, 7, 9));
            nothingComes(consumer);
        }
    }
}
