// SPDX-License-Identifier: Apache-2.0
// BookKeeper's own client doing what measure.py does: for each size, entries are added to one ledger with a limit on the
// bytes in flight. Prints a line per size: the word "measured", bytes, microseconds of this process's processor time
// per entry, the same of wall time, and for entries added one at a time the median and the 99th percentile in
// milliseconds.
// Arguments: the metadata service's URI, rounds, and then pairs of size and number of entries.
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class JavaClient {
    private static final int PENDING_MAX = 8 << 20;
    private static final int LONE = 300;
    private static final int WARM_UP = 8; // rounds until its code is compiled

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true); // as Pulsar does, and no limit of 5,000 entries per second:
        configuration.setThrottleValue(0);
        BookKeeper client = BookKeeper.newBuilder(configuration).build();
        int rounds = Integer.parseInt(arguments[1]);
        for (int at = 2; at < arguments.length; at += 2) {
            measure(client, rounds, Integer.parseInt(arguments[at]), Integer.parseInt(arguments[at + 1]));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void measure(BookKeeper client, int rounds, int size, int count) throws Exception {
        double bestCpu = Double.MAX_VALUE;
        double bestWall = Double.MAX_VALUE;
        byte[] data = new byte[size];
        new java.util.Random(size).nextBytes(data);
        WriteHandle ledger = create(client);
        for (int round = -WARM_UP; round < rounds; round++) {
            long cpu = processorTime();
            long wall = System.nanoTime();
            Semaphore room = new Semaphore(Math.max(1, PENDING_MAX / size));
            for (int entry = 0; entry < count; entry++) {
                room.acquire();
                ledger.appendAsync(data).whenComplete((id, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                    room.release();
                });
            }
            room.acquire(Math.max(1, PENDING_MAX / size));
            if (round >= 0) {
                bestCpu = Math.min(bestCpu, (processorTime() - cpu) / 1e3 / count);
                bestWall = Math.min(bestWall, (System.nanoTime() - wall) / 1e3 / count);
            }
        }
        double[] milliseconds = new double[LONE];
        for (int entry = 0; entry < LONE; entry++) {
            long before = System.nanoTime();
            ledger.append(data);
            milliseconds[entry] = (System.nanoTime() - before) / 1e6;
        }
        Arrays.sort(milliseconds);
        ledger.close();
        client.newDeleteLedgerOp().withLedgerId(ledger.getId()).execute().get();
        System.out.printf("measured %d %.2f %.2f %.2f %.2f%n", size, bestCpu, bestWall, milliseconds[LONE / 2],
            milliseconds[LONE * 99 / 100]);
    }

    private static WriteHandle create(BookKeeper client) throws Exception {
        return client.newCreateLedgerOp()
            .withEnsembleSize(3)
            .withWriteQuorumSize(3)
            .withAckQuorumSize(2)
            .withDigestType(DigestType.CRC32C)
            .withPassword(new byte[0])
            .execute()
            .get();
    }

    private static long processorTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
