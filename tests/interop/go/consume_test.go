// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestEverySubscriptionTypeGetsEveryMessageOnce(t *testing.T) {
	for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Failover, pulsar.Shared, pulsar.KeyShared} {
		for _, batching := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d-batching-%v", kind, batching), func(t *testing.T) {
				t.Parallel()
				client, topic := connect(t), newTopic()
				consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Type: kind})
				options := pulsar.ProducerOptions{Topic: topic, DisableBatching: !batching}
				if kind == pulsar.KeyShared {
					options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
				}
				producer := produce(t, client, options)
				for number := range 100 {
					message := pulsar.ProducerMessage{Payload: fmt.Append(nil, number), Key: fmt.Sprint(number % 7)}
					producer.SendAsync(context.Background(), &message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
						if err != nil {
							t.Error(err)
						}
					})
				}
				must(t, producer.Flush())
				equal(t, "different messages", len(receiveNumbers(t, consumer, 100)), 100)
				nothingComes(t, consumer)
			})
		}
	}
}

func TestKeySharedStickyRanges(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	ranges := func(from, to int) pulsar.ConsumerOptions {
		policy, err := pulsar.NewKeySharedPolicySticky([]int{from, to})
		must(t, err)
		return pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: policy}
	}
	low := subscribe(t, client, ranges(0, 32767))
	overlapping := ranges(32767, 65535)
	overlapping.SubscriptionName = "s"
	if _, err := client.Subscribe(overlapping); err == nil {
		t.Fatal("overlapping ranges were accepted")
	}
	high := subscribe(t, client, ranges(32768, 65535))
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	for number := range 40 {
		send(t, producer, pulsar.ProducerMessage{Payload: []byte("m"), Key: fmt.Sprint(number)})
	}
	owners, counts := map[string]int{}, [2]int{}
	for counts[0]+counts[1] < 40 {
		var got pulsar.ConsumerMessage
		var owner int
		select {
		case got = <-low.Chan():
			owner = 0
		case got = <-high.Chan():
			owner = 1
		case <-time.After(patience):
			t.Fatal("not every message came")
		}
		owners[got.Key()] = owner
		counts[owner]++
	}
	equal(t, "keys", len(owners), 40)
	if counts[0] == 0 || counts[1] == 0 {
		t.Fatalf("one consumer got nothing: %v", counts)
	}
}

func TestFailoverGoesToTheNextConsumer(t *testing.T) {
	t.Parallel()
	topic := newTopic()
	one, two := connect(t), connect(t)
	first := subscribe(t, one, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "a"})
	second := subscribe(t, two, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "b"})
	producer := produce(t, two, pulsar.ProducerOptions{Topic: topic})
	sendNumbers(t, producer, 10)
	equal(t, "messages of the first", len(receiveNumbers(t, first, 5)), 5)
	one.Close()
	rest := receiveNumbers(t, second, 5)
	equal(t, "the last one", rest["9"], 1)
}

func TestNegativeAcknowledgementsEndInTheDeadLetterTopic(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 50 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead", InitialSubscriptionName: "first"},
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	sendNumbers(t, producer, 3)
	for range 6 {
		consumer.Nack(receive(t, consumer))
	}
	// The client sends a message there when it has come once too often.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _, _ = consumer.Receive(ctx) }()
	dead := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic + "-dead", SubscriptionName: "first", Type: pulsar.Shared})
	equal(t, "dead letters", len(receiveNumbers(t, dead, 3)), 3)
}

func TestRetryLetters(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 5, RetryLetterTopic: topic + "-retry", DeadLetterTopic: topic + "-dead"},
	})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	sendNumbers(t, producer, 1)
	message := receive(t, consumer)
	asked := time.Now()
	consumer.ReconsumeLaterWithCustomProperties(message, map[string]string{"why": "later"}, 300*time.Millisecond)
	again := receive(t, consumer)
	if waited := time.Since(asked); waited < 300*time.Millisecond {
		t.Fatalf("it came again after %v", waited)
	}
	equal(t, "payload", string(again.Payload()), "0")
	equal(t, "its property", again.Properties()["why"], "later")
	if !strings.HasSuffix(again.Topic(), "-retry") {
		t.Fatalf("it came again from %s", again.Topic())
	}
	must(t, consumer.Ack(again))
}

func TestSeekByIDAndByTime(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := sendNumbers(t, producer, 10)
	receiveNumbers(t, consumer, 10)
	// By time first: the client remembers the id of a seek and drops everything before it.
	must(t, consumer.SeekByTime(time.Now().Add(-time.Hour)))
	equal(t, "after a seek by time", len(receiveNumbers(t, consumer, 10)), 10)
	must(t, consumer.Seek(ids[6]))
	equal(t, "after a seek by id", string(receive(t, consumer).Payload()), "6")
	last, err := consumer.GetLastMessageIDs()
	must(t, err)
	equal(t, "the last entry", last[0].EntryID(), ids[9].EntryID())
}

func TestAcknowledgementsWithAnswer(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	options := pulsar.ConsumerOptions{Topic: topic, AckWithResponse: true}
	consumer := subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	sendNumbers(t, producer, 6)
	messages := make([]pulsar.Message, 6)
	for at := range messages {
		messages[at] = receive(t, consumer)
	}
	must(t, consumer.AckCumulative(messages[2]))
	must(t, consumer.AckIDList([]pulsar.MessageID{messages[3].ID(), messages[5].ID()}))
	consumer.Close()
	consumer = subscribe(t, client, options)
	equal(t, "what is left", string(receive(t, consumer).Payload()), "4")
	nothingComes(t, consumer)
}

func TestBatchIndexAcknowledgements(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true, AckWithResponse: true,
	}
	consumer := subscribe(t, client, options)
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Minute,
	})
	for number := range 10 {
		message := pulsar.ProducerMessage{Payload: fmt.Append(nil, number)}
		producer.SendAsync(context.Background(), &message, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	must(t, producer.Flush())
	for range 10 {
		message := receive(t, consumer)
		equal(t, "messages in the batch", message.ID().BatchSize(), int32(10))
		if message.ID().BatchIdx()%2 == 0 {
			must(t, consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer = subscribe(t, client, options)
	left := receiveNumbers(t, consumer, 5)
	for number := 1; number < 10; number += 2 {
		equal(t, fmt.Sprint(number), left[fmt.Sprint(number)], 1)
	}
	nothingComes(t, consumer)
}

func TestDelayedMessagesDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic})
	sent, delay := time.Now(), 5*time.Second
	send(t, producer, pulsar.ProducerMessage{Payload: []byte("late"), DeliverAfter: delay})
	send(t, producer, pulsar.ProducerMessage{Payload: []byte("now")})
	equal(t, "first", string(receive(t, consumer).Payload()), "now")
	equal(t, "second", string(receive(t, consumer).Payload()), "late")
	if waited := time.Since(sent); waited < delay {
		t.Fatalf("it was delivered after %v", waited)
	}
}

func TestPatternConsumersFindNewTopics(t *testing.T) {
	t.Parallel()
	client, base := connect(t), newTopic()
	first := produce(t, client, pulsar.ProducerOptions{Topic: base + "-found-1"})
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		TopicsPattern: base + "-found-.*", AutoDiscoveryPeriod: 200 * time.Millisecond,
	})
	sendNumbers(t, first, 1)
	receiveNumbers(t, consumer, 1)
	second := produce(t, client, pulsar.ProducerOptions{Topic: base + "-found-2"})
	send(t, second, pulsar.ProducerMessage{Payload: []byte("new")})
	message := receive(t, consumer)
	equal(t, "from the new topic", message.Topic(), base+"-found-2")
}

func TestReadersAndWhetherThereIsMore(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := sendNumbers(t, producer, 5)
	read := func(options pulsar.ReaderOptions) string {
		options.Topic = topic
		reader, err := client.CreateReader(options)
		must(t, err)
		defer reader.Close()
		found := ""
		for reader.HasNext() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			message, err := reader.Next(ctx)
			cancel()
			must(t, err)
			found += string(message.Payload())
		}
		return found
	}
	equal(t, "from the earliest", read(pulsar.ReaderOptions{StartMessageID: pulsar.EarliestMessageID()}), "01234")
	equal(t, "from the latest", read(pulsar.ReaderOptions{StartMessageID: pulsar.LatestMessageID()}), "")
	equal(t, "after one", read(pulsar.ReaderOptions{StartMessageID: ids[2]}), "34")
	equal(t, "from one", read(pulsar.ReaderOptions{StartMessageID: ids[2], StartMessageIDInclusive: true}), "234")
}

func TestForcedUnsubscribe(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}
	one := subscribe(t, client, options)
	subscribe(t, client, options)
	if one.Unsubscribe() == nil {
		t.Fatal("one of two consumers unsubscribed")
	}
	must(t, one.UnsubscribeForce())
}
