// SPDX-License-Identifier: Apache-2.0

// Package interop drives a broker with the official Go client. The broker's addresses come from the environment:
// INTEROP_SERVICE_URL and INTEROP_ADMIN_URL.
package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	patience = time.Minute
	// quiet is how long nothing must come before a test concludes that nothing will.
	quiet = 400 * time.Millisecond
)

var numbers atomic.Int64

// newTopic returns a new name, so that tests can run in parallel.
func newTopic() string {
	return fmt.Sprintf("persistent://public/default/go-%d", numbers.Add(1))
}

func connect(t *testing.T) pulsar.Client {
	t.Helper()
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Getenv("INTEROP_SERVICE_URL"),
		OperationTimeout: patience,
		Logger:           log.NewLoggerWithLogrus(logger),
	})
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s: got %v, wanted %v", what, got, wanted)
	}
}

func produce(t *testing.T, client pulsar.Client, options pulsar.ProducerOptions) pulsar.Producer {
	t.Helper()
	producer, err := client.CreateProducer(options)
	must(t, err)
	t.Cleanup(producer.Close)
	return producer
}

func send(t *testing.T, producer pulsar.Producer, message pulsar.ProducerMessage) pulsar.MessageID {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id, err := producer.Send(ctx, &message)
	must(t, err)
	return id
}

func sendNumbers(t *testing.T, producer pulsar.Producer, count int) []pulsar.MessageID {
	t.Helper()
	ids := make([]pulsar.MessageID, count)
	for number := range count {
		ids[number] = send(t, producer, pulsar.ProducerMessage{Payload: fmt.Append(nil, number)})
	}
	return ids
}

func subscribe(t *testing.T, client pulsar.Client, options pulsar.ConsumerOptions) pulsar.Consumer {
	t.Helper()
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	consumer, err := client.Subscribe(options)
	must(t, err)
	t.Cleanup(consumer.Close)
	return consumer
}

func receive(t *testing.T, consumer pulsar.Consumer) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := consumer.Receive(ctx)
	must(t, err)
	return message
}

// receiveNumbers takes count messages and acknowledges each.
func receiveNumbers(t *testing.T, consumer pulsar.Consumer, count int) map[string]int {
	t.Helper()
	found := map[string]int{}
	for range count {
		message := receive(t, consumer)
		found[string(message.Payload())]++
		must(t, consumer.Ack(message))
	}
	return found
}

func nothingComes(t *testing.T, consumer pulsar.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), quiet)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err == nil {
		t.Fatalf("%q came, but nothing should have", message.Payload())
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	until := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(until) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
