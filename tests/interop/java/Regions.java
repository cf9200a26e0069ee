// SPDX-License-Identifier: Apache-2.0

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Replicated subscriptions with the official Java client and its admin client, over three regions:
 * {@code Regions CONTROL_URL}, then {@code NAME SERVICE_URL ADMIN_URL} for each region. At the control URL, a POST to
 * {@code /kill/NAME} and {@code /back/NAME} kills a region with SIGKILL and restarts it; to {@code /pause/NAME} and
 * {@code /resume/NAME} suspends its process and resumes it.
 */
public final class Regions extends Checks {
    private final String control;
    private final Region east;
    private final Region west;
    private final Region central;

    private Regions(String control, Region east, Region west, Region central) {
        this.control = control;
        this.east = east;
        this.west = west;
        this.central = central;
    }

    public static void main(String[] arguments) throws Exception {
        Region[] regions = new Region[3];
        for (int at = 0; at < regions.length; at++) {
            regions[at] = Region.connect(arguments[3 * at + 1], arguments[3 * at + 2], arguments[3 * at + 3]);
        }
        boolean good = new Regions(arguments[0], regions[0], regions[1], regions[2]).all();
        for (Region region : regions) {
            region.client().close();
            region.admin().close();
        }
        System.exit(good ? 0 : 1);
    }

    private boolean all() {
        Letters letters = new Letters(east, west);
        Steering steering = new Steering(east, west);
        boolean good = true;
        for (Moves.Story story : Moves.stories("-planned")) {
            good &= check("planned move: " + story.name, () -> plannedMove(story));
        }
        return good
                & check("dead letters", letters::deadLetters)
                & check("retry letters", letters::retryLetters)
                & check("skip, reset and expiry", steering::cursors)
                & check("rewinds", steering::rewinds)
                & check("unsubscribe", steering::unsubscribing)
                & check("the replicated flag", steering::replicatedStatus)
                & check("partitions grow", steering::growth)
                & check("a client is told where to go", new Following(east, west)::controlled)
                & check("a region hangs", this::hang)
                & check("a region is killed", this::kill);
    }

    private void plannedMove(Moves.Story story) throws Exception {
        story.prepare(east.client());
        story.begin(east.client());
        story.leave();
        story.goOn(west.client());
        story.leave();
        owedNothing(story.topic, "s");
    }

    private void owedNothing(String topic, String subscription) throws Exception {
        for (Region region : List.of(east, west, central)) {
            becomes(0L, "what " + region.name() + " is owed of " + topic, () -> region.backlog(topic, subscription));
        }
    }

    /** A region that accepts connections but never answers: the client goes to another one, and back. */
    private void hang() throws Exception {
        String topic = Moves.TOPICS + "hung";
        try (PulsarClient moving = Following.looking(east, west);
                Following.Walk walk = new Following.Walk(moving, List.of(topic), topic)) {
            walk.workIn(east);
            becomes(10L, "the entries in the west", () -> west.entries(topic));
            ask("pause", east);
            try {
                walk.workIn(west);
            } finally {
                ask("resume", east);
            }
            walk.hasLeft(west);
            walk.workIn(east);
            walk.end();
        }
    }

    /** All stories at once, and clients that move by themselves: one region dies, and comes back. */
    private void kill() throws Exception {
        List<Moves.Story> stories = Moves.stories("-killed");
        String walked = Moves.TOPICS + "walked";
        PulsarClient doomed = Region.newClient(east.serviceUrl());
        try (PulsarClient moving = Following.automatic(east, west);
                Following.Walk walk = new Following.Walk(moving, List.of(walked), walked)) {
            for (Moves.Story story : stories) {
                story.prepare(east.client());
                long all = east.entries(story.topic);
                becomes(all, "the entries of " + story.name + " in the west", () -> west.entries(story.topic));
                story.begin(doomed);
            }
            walk.workIn(east);
            becomes(10L, "the walk's entries in the west", () -> west.entries(walked));
            ask("kill", east);
            doomed.shutdown();
            boolean good = check("the client moves by itself", () -> walk.workIn(west));
            for (Moves.Story story : stories) {
                good &= check("after SIGKILL: " + story.name, () -> story.goOn(west.client()));
                story.leave();
            }
            ask("back", east);
            good &= check("the client moves back by itself", () -> walk.workIn(east));
            walk.end();
            for (Moves.Story story : stories) {
                owedNothing(story.topic, "s");
            }
            equal(good, true);
        }
    }

    private void ask(String what, Region region) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(control + "/" + what + "/" + region.name()))
                .POST(HttpRequest.BodyPublishers.noBody()).build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        equal(answer.statusCode() + answer.body(), "204");
    }
}
