// SPDX-License-Identifier: Apache-2.0
// Writes ledgers with BookKeeper's own client, for our tests: a closed one, a striped and closed one, and one whose writer
// dies without closing it. Prints their ids. Arguments: the metadata service's URI, and the number of entries.
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class JavaWriter {
    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        BookKeeper client = BookKeeper.newBuilder(configuration).build();
        int entries = Integer.parseInt(arguments[1]);
        write(client, 3, 3, entries).close();
        write(client, 4, 2, entries).close();
        write(client, 3, 3, entries);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static WriteHandle write(BookKeeper client, int ensemble, int copies, int entries) throws Exception {
        WriteHandle ledger = client.newCreateLedgerOp()
            .withEnsembleSize(ensemble)
            .withWriteQuorumSize(copies)
            .withAckQuorumSize(2)
            .withDigestType(DigestType.CRC32C)
            .withPassword("of java".getBytes(StandardCharsets.UTF_8))
            .withCustomMetadata(Map.of("meridian-fence", "1".getBytes(StandardCharsets.UTF_8)))
            .execute()
            .get();
        for (int entry = 0; entry < entries; entry++) {
            ledger.append(("entry " + entry).getBytes(StandardCharsets.UTF_8));
        }
        System.out.println("ledger " + ledger.getId());
        return ledger;
    }
}
