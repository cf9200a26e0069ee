// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/** What only the official Java client does, or does its own way, with a broker: {@code Interop SERVICE_URL ADMIN_URL}. */
public final class Interop extends Checks {
    private static final String TOPICS = "persistent://public/default/";

    private final PulsarClient client;
    private final PulsarAdmin admin;

    private Interop(PulsarClient client, PulsarAdmin admin) {
        this.client = client;
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        boolean good;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            good = new Interop(client, admin).all();
        }
        System.exit(good ? 0 : 1);
    }

    private boolean all() {
        return check("acknowledgement receipts", this::acknowledgementReceipts)
                & check("a watcher finds a new topic", this::watcher)
                & check("non-persistent topics", this::nonPersistent)
                & check("batch index acknowledgements", this::batchIndexAcknowledgements)
                & check("consumer epochs", this::consumerEpochs)
                & check("sticky key ranges", this::stickyRanges)
                & check("table views", this::tableView)
                & check("readers", this::readers)
                & check("dead letters", this::deadLetters)
                & check("chunks and access modes", this::chunksAndAccessModes)
                & check("new partitions", this::newPartitions)
                & check("read compacted", this::readCompacted)
                & check("shadow topics", this::shadows)
                & check("admin", this::administration);
    }

    private ConsumerBuilder<byte[]> consumer(String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private void acknowledgementReceipts() throws Exception {
        String topic = TOPICS + "receipts";
        ConsumerBuilder<byte[]> builder = consumer(topic).isAckReceiptEnabled(true);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            Consumer<byte[]> consumer = builder.subscribe();
            send(producer, 5);
            List<Message<byte[]>> messages = new ArrayList<>();
            for (int at = 0; at < 5; at++) {
                messages.add(consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS));
            }
            consumer.acknowledgeCumulativeAsync(messages.get(1)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            consumer.acknowledgeAsync(List.of(messages.get(2).getMessageId(), messages.get(4).getMessageId()))
                    .get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            consumer.close();
            consumer = builder.subscribe();
            equal(next(consumer), "3");
            nothingComes(consumer);
            consumer.close();
        }
    }

    /** On its own, the client would ask only after ten minutes. */
    private void watcher() throws Exception {
        try (Producer<byte[]> first = client.newProducer().topic(TOPICS + "watched-1").create();
                Consumer<byte[]> consumer = client.newConsumer()
                        .topicsPattern(Pattern.compile(TOPICS + "watched-.*"))
                        .patternAutoDiscoveryPeriod(600, TimeUnit.SECONDS)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscriptionName("s").subscribe()) {
            send(first, 1);
            equal(next(consumer), "0");
            try (Producer<byte[]> second = client.newProducer().topic(TOPICS + "watched-2").create()) {
                second.send("new".getBytes());
                equal(next(consumer), "new");
            }
        }
    }

    private void nonPersistent() throws Exception {
        String topic = "non-persistent://public/default/light";
        try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.newMessage().key("k").value("v".getBytes()).send();
            equal(next(consumer), "v");
            equal(admin.nonPersistentTopics().getList("public/default"), List.of(topic));
            equal(admin.topics().getStats(topic).getSubscriptions().get("s").getMsgOutCounter(), 1L);
        }
    }

    private void batchIndexAcknowledgements() throws Exception {
        String topic = TOPICS + "batches";
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
            Consumer<byte[]> consumer = builder.subscribe();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                sent.add(producer.sendAsync(Integer.toString(number).getBytes()));
            }
            producer.flush();
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            for (int number = 0; number < 10; number++) {
                Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
                if (number % 2 == 0) {
                    consumer.acknowledge(message);
                }
            }
            consumer.close();
            consumer = builder.subscribe();
            for (int number = 1; number < 10; number += 2) {
                equal(next(consumer), Integer.toString(number));
            }
            nothingComes(consumer);
            consumer.close();
        }
    }

    /** On Exclusive the client raises its epoch with each redelivery, and drops what was sent in an older one. */
    private void consumerEpochs() throws Exception {
        String topic = TOPICS + "epochs";
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            send(producer, 20);
            for (int round = 0; round < 4; round++) {
                for (int number = 0; number < 20; number++) {
                    equal(next(consumer), Integer.toString(number));
                }
                if (round < 3) {
                    consumer.redeliverUnacknowledgedMessages();
                }
            }
            nothingComes(consumer);
        }
    }

    private void stickyRanges() throws Exception {
        String topic = TOPICS + "sticky";
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Key_Shared);
        try (Consumer<byte[]> low = builder.clone()
                        .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767))).subscribe();
                Consumer<byte[]> high = builder.clone()
                        .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 65535))).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int number = 0; number < 40; number++) {
                producer.newMessage().key("key-" + number).value(new byte[1]).send();
            }
            int lows = 0;
            int highs = 0;
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
            while (lows + highs < 40 && System.nanoTime() < until) {
                lows += low.receive(10, TimeUnit.MILLISECONDS) == null ? 0 : 1;
                highs += high.receive(10, TimeUnit.MILLISECONDS) == null ? 0 : 1;
            }
            equal(lows + highs, 40);
            equal(lows > 0 && highs > 0, true);
            nothingComes(low);
            nothingComes(high);
        }
    }

    private void tableView() throws Exception {
        String topic = TOPICS + "table";
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            producer.newMessage().key("a").value("1").send();
            producer.newMessage().key("a").value("2").send();
            try (TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create()) {
                equal(view.get("a"), "2");
                CompletableFuture<String> heard = new CompletableFuture<>();
                view.listen((key, value) -> heard.complete(key + value));
                producer.newMessage().key("b").value("3").send();
                equal(heard.get(PATIENCE_SECONDS, TimeUnit.SECONDS), "b3");
            }
        }
    }

    private void readers() throws Exception {
        String topic = TOPICS + "read";
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            MessageId fourth = null;
            for (int number = 0; number < 10; number++) {
                MessageId id = producer.send(Integer.toString(number).getBytes());
                fourth = number == 4 ? id : fourth;
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                int count = 0;
                while (reader.hasMessageAvailable()) {
                    reader.readNext(PATIENCE_SECONDS, TimeUnit.SECONDS);
                    count++;
                }
                equal(count, 10);
                reader.seek(fourth);
                equal(new String(reader.readNext(PATIENCE_SECONDS, TimeUnit.SECONDS).getData()), "5");
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic)
                    .startMessageId(MessageId.latest).startMessageIdInclusive().create()) {
                equal(reader.hasMessageAvailable(), true);
                equal(new String(reader.readNext(PATIENCE_SECONDS, TimeUnit.SECONDS).getData()), "9");
                equal(reader.hasMessageAvailable(), false);
            }
        }
    }

    private void deadLetters() throws Exception {
        String topic = TOPICS + "letters";
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2)
                .deadLetterTopic(topic + "-dead").initialSubscriptionName("first").build();
        try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).deadLetterPolicy(policy).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            send(producer, 1);
            for (int time = 0; time < 3; time++) {
                consumer.negativeAcknowledge(consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS));
            }
            consumer.receiveAsync();
            try (Consumer<byte[]> dead = client.newConsumer().topic(topic + "-dead").subscriptionName("first")
                    .subscribe()) {
                equal(next(dead), "0");
            }
        }
    }

    private void chunksAndAccessModes() throws Exception {
        String topic = TOPICS + "alone";
        byte[] body = new byte[100_000];
        new Random().nextBytes(body);
        try (Producer<byte[]> alone = client.newProducer().topic(topic).enableChunking(true).enableBatching(false)
                        .chunkMaxMessageSize(10_000).accessMode(ProducerAccessMode.Exclusive).create();
                Consumer<byte[]> consumer = consumer(topic).subscribe()) {
            alone.send(body);
            equal(Arrays.equals(body, consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS).getData()), true);
            refused(PulsarClientException.ProducerBusyException.class, () -> client.newProducer().topic(topic).create());
            client.newProducer().topic(topic).accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
            refused(PulsarClientException.ProducerFencedException.class, () -> alone.send(new byte[1]));
        }
    }

    private void newPartitions() throws Exception {
        String topic = TOPICS + "parts";
        admin.topics().createPartitionedTopic(topic, 2);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create();
                Consumer<byte[]> consumer = consumer(topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                        .subscribe()) {
            admin.topics().updatePartitionedTopic(topic, 4);
            Set<String> seen = new HashSet<>();
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
            while (seen.size() < 4 && System.nanoTime() < until) {
                producer.send(new byte[1]);
                seen.add(consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS).getTopicName());
            }
            equal(seen.size(), 4);
        }
    }

    private void readCompacted() throws Exception {
        String topic = TOPICS + "compacted";
        consumer(topic).readCompacted(true).subscribe().close();
        String volatileTopic = "non-persistent://public/default/compacted";
        refused(PulsarClientException.class, () -> consumer(volatileTopic).readCompacted(true).subscribe());
    }

    private void shadows() throws Exception {
        String source = TOPICS + "sourced";
        String shadow = TOPICS + "sourced-view";
        admin.topics().createNonPartitionedTopic(source);
        admin.topics().createShadowTopic(shadow, source);
        equal(admin.topics().getShadowSource(shadow), source);
        admin.topics().setShadowTopics(source, List.of(shadow));
        equal(admin.topics().getShadowTopics(source), List.of(shadow));
        try (Consumer<byte[]> consumer = consumer(shadow).subscribe()) {
            for (MessageId sent : publish(client, source, 0, 5)) {
                Message<byte[]> message = receive(consumer);
                equal(message.getMessageId(), sent);
                consumer.acknowledge(message);
            }
        }
        refused(PulsarClientException.NotAllowedException.class, () -> client.newProducer().topic(shadow).create());
        refused(PulsarAdminException.PreconditionFailedException.class, () -> admin.topics().delete(source));
        refused(PulsarAdminException.NotFoundException.class,
                () -> admin.topics().createShadowTopic(shadow + "-2", source + "-missing"));
        refused(PulsarAdminException.ConflictException.class, () -> admin.topics().createShadowTopic(shadow, source));
        refused(PulsarAdminException.PreconditionFailedException.class,
                () -> admin.topics().createShadowTopic(shadow + "-2", shadow));
        for (List<String> wrong : List.of(List.<String>of(), List.of(source), List.of(source + "-missing"))) {
            refused(PulsarAdminException.PreconditionFailedException.class,
                    () -> admin.topics().setShadowTopics(source, wrong));
        }
        equal(admin.topics().getShadowTopics(source), List.of(shadow));
        admin.topics().removeShadowTopics(source);
        equal(admin.topics().getShadowTopics(source), List.of());
        admin.topics().delete(shadow);
        admin.topics().delete(source);

        String parted = TOPICS + "sourced-parts";
        String view = TOPICS + "sourced-parts-view";
        admin.topics().createPartitionedTopic(parted, 2);
        admin.topics().createShadowTopic(view, parted);
        equal(admin.topics().getPartitionedTopicMetadata(view).partitions, 2);
        admin.topics().updatePartitionedTopic(parted, 3);
        equal(admin.topics().getPartitionedTopicMetadata(view).partitions, 3);
        try (Consumer<byte[]> consumer = consumer(view).subscribe()) {
            Set<MessageId> sent = new HashSet<>(publish(client, parted, 0, 6));
            Set<MessageId> received = new HashSet<>();
            for (int at = 0; at < 6; at++) {
                received.add(MessageId.fromByteArray(receive(consumer).getMessageId().toByteArray()));
            }
            equal(received, sent);
        }
        admin.topics().deletePartitionedTopic(view);
        admin.topics().deletePartitionedTopic(parted);
    }

    private void administration() throws Exception {
        String topic = TOPICS + "managed";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            send(producer, 5);
            equal(admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog(), 5L);
            admin.topics().skipMessages(topic, "s", 2);
            equal(admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog(), 3L);
            admin.topics().resetCursor(topic, "s", 0);
            equal(admin.topics().getInternalStats(topic).numberOfEntries, 5L);
            equal(admin.topics().getList("public/default").contains(topic), true);
            refused(PulsarAdminException.PreconditionFailedException.class, () -> admin.topics().delete(topic));
            admin.topics().delete(topic, true);
        }
        admin.namespaces().createNamespace("public/javas");
        admin.namespaces().deleteNamespace("public/javas");
    }
}
