// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/** Runs and reports checks, and helps them with producers and consumers of numbered messages. Inherited, because
 * nothing can be imported from a class without a package. */
abstract class Checks {
    static final int PATIENCE_SECONDS = 60;
    /** How long no message must come before a check concludes that none will: longer than the longest barrier. */
    static final int QUIET_MS = 300;

    interface Check {
        void run() throws Exception;
    }

    static boolean check(String name, Check check) {
        long begun = System.nanoTime();
        try {
            check.run();
            System.out.printf("ok      %5d ms  %s%n", (System.nanoTime() - begun) / 1_000_000, name);
            return true;
        } catch (Throwable failure) {
            System.out.println("FAILED  " + name);
            failure.printStackTrace(System.out);
            return false;
        }
    }

    static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("got " + got + ", wanted " + wanted);
        }
    }

    static void refused(Class<? extends Exception> wanted, Check check) throws Exception {
        try {
            check.run();
        } catch (Exception failure) {
            if (wanted.isInstance(failure)) {
                return;
            }
            throw failure;
        }
        throw new AssertionError("it was not refused by " + wanted.getSimpleName());
    }

    /** Waits until the value is this, where no event notifies a client. */
    static <T> void becomes(T wanted, String what, Callable<T> value) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        T got = value.call();
        while (!Objects.equals(got, wanted)) {
            if (System.nanoTime() > until) {
                throw new AssertionError("waited in vain for " + what + " to be " + wanted + ", it is " + got);
            }
            Thread.sleep(20);
            got = value.call();
        }
    }

    static void send(Producer<byte[]> producer, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            producer.send(Integer.toString(number).getBytes());
        }
    }

    /** Publishes the numbers from one up to but excluding another, an entry each. */
    static List<MessageId> publish(PulsarClient client, String topic, int from, int to) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int number = from; number < to; number++) {
                ids.add(producer.send(Integer.toString(number).getBytes()));
            }
        }
        return ids;
    }

    static Message<byte[]> receive(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("waited in vain for a message");
        }
        return message;
    }

    static String next(Consumer<byte[]> consumer) throws Exception {
        return new String(receive(consumer).getData());
    }

    static int number(Message<byte[]> message) {
        return Integer.parseInt(new String(message.getData()));
    }

    /** Receives this many messages without acknowledging them. */
    static List<Message<byte[]>> take(Consumer<byte[]> consumer, int count) throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            messages.add(receive(consumer));
        }
        return messages;
    }

    static void nothingComes(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
        equal(message == null ? null : new String(message.getData()), null);
    }

    /** Exactly these come, in any order, and are acknowledged; then nothing comes. */
    static void takeNumbers(Consumer<byte[]> consumer, List<Integer> wanted) throws Exception {
        List<Integer> found = new ArrayList<>();
        List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
        for (int at = 0; at < wanted.size(); at++) {
            Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
            if (message == null) {
                throw new AssertionError("only " + found + " came of " + wanted);
            }
            found.add(number(message));
            acknowledged.add(consumer.acknowledgeAsync(message));
        }
        found.sort(null);
        equal(found, wanted);
        nothingComes(consumer);
        CompletableFuture.allOf(acknowledged.toArray(CompletableFuture[]::new)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
}
