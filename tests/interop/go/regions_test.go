// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

// region is one of those in INTEROP_REGIONS, which lists name, service URL and admin URL of each, separated by spaces.
// The names of tests of several regions begin with TestRegions.
type region struct {
	name, service string
	admin         pulsaradmin.Client
}

// regions returns those that the tests run on: at least two, the first of which may be killed.
func regions(t *testing.T) []region {
	t.Helper()
	words := strings.Fields(os.Getenv("INTEROP_REGIONS"))
	found := []region{}
	for group := range slices.Chunk(words, 3) {
		admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: group[2]})
		must(t, err)
		found = append(found, region{group[0], group[1], admin})
	}
	if len(found) < 2 {
		t.Fatal("INTEROP_REGIONS names no regions")
	}
	return found
}

func (r region) connect(t *testing.T) pulsar.Client {
	t.Helper()
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel) // one is killed on purpose, and its clients log that
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: r.service, OperationTimeout: patience, Logger: log.NewLoggerWithLogrus(logger),
	})
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// stats returns a subscription's statistics; nil while it does not exist in the region.
func (r region) stats(t *testing.T, topic, subscription string) *utils.SubscriptionStats {
	t.Helper()
	stats, err := r.admin.Topics().GetStats(nameOf(t, topic))
	if err != nil && strings.Contains(err.Error(), "404") {
		return nil
	}
	must(t, err)
	if found, there := stats.Subscriptions[subscription]; there {
		return &found
	}
	return nil
}

// entries returns how many entries the region stores.
func (r region) entries(t *testing.T, topic string) int64 {
	t.Helper()
	stats, err := r.admin.Topics().GetInternalStats(nameOf(t, topic))
	if err != nil && strings.Contains(err.Error(), "404") {
		return 0
	}
	must(t, err)
	return stats.NumberOfEntries
}

// owes waits until the region owes a subscription this many entries; -1: until the subscription does not exist.
func (r region) owes(t *testing.T, topic, subscription string, count int64) {
	t.Helper()
	eventually(t, r.name+" to owe what it should of "+topic, func() bool {
		stats := r.stats(t, topic, subscription)
		return stats == nil && count < 0 || stats != nil && stats.MsgBacklog == count
	})
}

func ask(t *testing.T, what string, r region) {
	t.Helper()
	answer, err := http.Post(os.Getenv("INTEROP_CONTROL_URL")+"/"+what+"/"+r.name, "", nil)
	must(t, err)
	equal(t, what, answer.StatusCode, http.StatusNoContent)
	must(t, answer.Body.Close())
}

// replicated subscribes with the flag, which is all that it takes. An acknowledgement returns when it is durable.
func replicated(t *testing.T, client pulsar.Client, options pulsar.ConsumerOptions) pulsar.Consumer {
	t.Helper()
	options.ReplicateSubscriptionState = true
	options.AckWithResponse = true
	options.NackRedeliveryDelay = 100 * time.Millisecond
	return subscribe(t, client, options)
}

func take(t *testing.T, consumer pulsar.Consumer, count int) []pulsar.Message {
	t.Helper()
	messages := make([]pulsar.Message, count)
	for at := range messages {
		messages[at] = receive(t, consumer)
	}
	return messages
}

// takeAll takes exactly these, in any order; then nothing comes.
func takeAll(t *testing.T, consumer pulsar.Consumer, wanted ...string) {
	t.Helper()
	got := []string{}
	for range wanted {
		message := receive(t, consumer)
		got = append(got, string(message.Payload()))
		must(t, consumer.Ack(message))
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		t.Fatalf("got %v, wanted %v", got, wanted)
	}
	nothingComes(t, consumer)
}

// takeInOrder takes exactly these, one after the other; then nothing comes.
func takeInOrder(t *testing.T, consumer pulsar.Consumer, wanted ...string) {
	t.Helper()
	for _, payload := range wanted {
		message := receive(t, consumer)
		equal(t, "the next message", string(message.Payload()), payload)
		must(t, consumer.Ack(message))
	}
	nothingComes(t, consumer)
}

func TestRegionsKill(t *testing.T) {
	where := regions(t)
	east, west := where[0], where[1]
	publisher, doomed, there := east.connect(t), east.connect(t), west.connect(t)
	moves := stories()
	for _, move := range moves {
		move.topic = newTopic()
		move.publish(t, publisher, move.topic)
		eventually(t, "the messages to be in the other region", func() bool {
			return west.entries(t, move.topic) == east.entries(t, move.topic)
		})
		move.begin(t, doomed, move.topic)
		if move.name == "chunks" { // the client does not wait for the receipts of their acknowledgements
			west.owes(t, move.topic, "s", 6)
		}
	}
	ask(t, "kill", east)
	for _, move := range moves {
		t.Run(move.name, func(t *testing.T) { move.goOn(t, there, move.topic) })
	}
	ask(t, "back", east)
	for _, move := range moves {
		for _, each := range where {
			each.owes(t, move.topic, "s", 0)
		}
	}
}

func TestRegionsPlannedMove(t *testing.T) {
	for _, move := range stories() {
		t.Run(move.name, func(t *testing.T) {
			t.Parallel()
			where, topic := regions(t), newTopic()
			here := where[0].connect(t)
			move.publish(t, here, topic)
			for _, consumer := range move.begin(t, here, topic) {
				consumer.Close()
			}
			move.goOn(t, where[1].connect(t), topic)
			for _, each := range where {
				each.owes(t, topic, "s", 0)
			}
		})
	}
}

// The copies are replicated like any message, also those of messages from the other region. Redelivery counts belong to
// a region; the count of retries belongs to the copy.
func TestRegionsDeadLettersAndRetries(t *testing.T) {
	t.Parallel()
	where, topic := regions(t), newTopic()
	east, west := where[0], where[1]
	dead, retry := topic+"-s-DLQ", topic+"-s-RETRY"
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: dead, RetryLetterTopic: retry},
	}
	// Without AckWithResponse: the client acknowledges what it copied in the goroutine that reads its connection, which
	// would then wait for the answer.
	options.ReplicateSubscriptionState, options.NackRedeliveryDelay = true, 100*time.Millisecond
	here := subscribe(t, east.connect(t), options)
	sendNumbers(t, produce(t, east.connect(t), pulsar.ProducerOptions{Topic: topic}), 2)
	messages := take(t, here, 2)
	asked, delay := time.Now(), 5*time.Second
	here.ReconsumeLater(messages[0], delay)
	here.Nack(messages[1])
	equal(t, "redeliveries", receive(t, here).RedeliveryCount(), 1)
	west.owes(t, retry, "s", 1)
	equal(t, "the flag on the retry topic", west.stats(t, retry, "s").IsReplicated, true)
	here.Close()

	there := subscribe(t, west.connect(t), options)
	retries, redeliveries := 0, uint32(0)
	for range 4 {
		message := receive(t, there)
		if string(message.Payload()) == "1" {
			equal(t, "redeliveries", message.RedeliveryCount(), redeliveries)
			redeliveries++
			there.Nack(message)
			continue
		}
		if time.Since(asked) < delay {
			t.Fatal("it came again before it was due")
		}
		retries++
		equal(t, "retries", message.Properties()["RECONSUMETIMES"], fmt.Sprint(retries))
		there.ReconsumeLater(message, 100*time.Millisecond)
	}
	nothingComes(t, there)
	for _, each := range where {
		eventually(t, "the dead letters in "+each.name, func() bool { return each.entries(t, dead) == 2 })
		each.owes(t, topic, "s", 0)
		each.owes(t, retry, "s", 0)
	}
}

func TestRegionsShareATopicThatGrows(t *testing.T) {
	t.Parallel()
	where, topic := regions(t), newTopic()
	east, west := where[0], where[1]
	must(t, east.admin.Topics().Create(nameOf(t, topic), 2))
	came := make(chan string, 1000)
	for _, each := range []region{east, west} {
		eventually(t, "the topic", func() bool {
			found, err := each.admin.Topics().GetMetadata(nameOf(t, topic))
			return err == nil && found.Partitions == 2
		})
		consumer := replicated(t, each.connect(t), pulsar.ConsumerOptions{
			Topic: topic, Type: pulsar.Shared, AutoDiscoveryPeriod: 200 * time.Millisecond,
		})
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() {
			for {
				message, err := consumer.Receive(ctx)
				if err != nil {
					return
				}
				came <- string(message.Payload())
				_ = consumer.Ack(message)
			}
		}()
	}
	must(t, east.admin.Topics().Update(nameOf(t, topic), 5))
	// A client that connects now knows all partitions, before some of the consumers do.
	sendNumbers(t, produce(t, east.connect(t), pulsar.ProducerOptions{Topic: topic, DisableBatching: true}), 50)
	seen := map[string]bool{}
	for len(seen) < 50 {
		select {
		case payload := <-came:
			seen[payload] = true
		case <-time.After(patience):
			t.Fatalf("only %d messages came", len(seen))
		}
	}
}

func TestRegionsAreSteeredByTheAdminClient(t *testing.T) {
	t.Parallel()
	where, topic := regions(t), newTopic()
	east, west := where[0], where[1]
	name := nameOf(t, topic)
	replicated(t, east.connect(t), pulsar.ConsumerOptions{Topic: topic}).Close()
	ids := sendNumbers(t, produce(t, east.connect(t), pulsar.ProducerOptions{Topic: topic, DisableBatching: true}), 10)
	owed := func(count int64) {
		t.Helper()
		east.owes(t, topic, "s", count)
		west.owes(t, topic, "s", count)
	}
	owed(10)
	must(t, east.admin.Subscriptions().SkipMessages(name, "s", 3))
	owed(7)
	fifth := utils.MessageID{LedgerID: ids[5].LedgerID(), EntryID: ids[5].EntryID(), PartitionIndex: -1}
	must(t, east.admin.Subscriptions().ResetCursorToMessageID(name, "s", fifth))
	owed(5)
	must(t, west.admin.Subscriptions().ClearBacklog(name, "s"))
	owed(0)
	must(t, west.admin.Subscriptions().ResetCursorToTimestamp(name, "s", 0))
	owed(10)
	must(t, west.admin.Subscriptions().Delete(name, "s"))
	owed(-1)
}
