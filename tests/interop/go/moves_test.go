// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// story is about consumers that begin in one region and go on in another. It does not depend on what is between, a
// planned move or the death of the region: what was acknowledged does not come again, everything else does.
type story struct {
	name, topic string
	publish     func(t *testing.T, here pulsar.Client, topic string)
	begin       func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer
	goOn        func(t *testing.T, there pulsar.Client, topic string)
}

func stories() []*story {
	return []*story{delayed(), outOfOrder(), inKeyOrder(), failover(), cumulative(), batch(), chunks()}
}

// numbered publishes count messages, an entry each.
func numbered(count int) func(*testing.T, pulsar.Client, string) {
	return func(t *testing.T, here pulsar.Client, topic string) {
		sendNumbers(t, produce(t, here, pulsar.ProducerOptions{Topic: topic, DisableBatching: true}), count)
	}
}

// ackAll acknowledges each message individually, all concurrently.
func ackAll(t *testing.T, consumer pulsar.Consumer, messages ...pulsar.Message) {
	t.Helper()
	var all sync.WaitGroup
	for _, message := range messages {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := consumer.Ack(message); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
}

func outOfOrder() *story {
	return &story{
		name:    "shared out of order with nacks",
		publish: numbered(12),
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumer := replicated(t, here, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			messages := take(t, consumer, 12)
			ackAll(t, consumer, messages[9], messages[6])
			ackAll(t, consumer, messages[3], messages[0])
			consumer.Nack(messages[1])
			consumer.Nack(messages[4])
			for _, again := range take(t, consumer, 2) {
				equal(t, "redeliveries", again.RedeliveryCount(), 1)
				if string(again.Payload()) == "1" {
					ackAll(t, consumer, again)
				}
			}
			return []pulsar.Consumer{consumer}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			consumer := replicated(t, there, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			takeAll(t, consumer, "2", "4", "5", "7", "8", "10", "11")
		},
	}
}

// inKeyOrder: each of four keys has four messages; the first k of key k are acknowledged before the move.
func inKeyOrder() *story {
	const keys = 4
	publish := func(t *testing.T, client pulsar.Client, topic string, from, to int) {
		producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
		for number := from; number < to; number++ {
			send(t, producer, pulsar.ProducerMessage{Payload: fmt.Append(nil, number), Key: fmt.Sprint(number % keys)})
		}
	}
	two := func(t *testing.T, client pulsar.Client, topic string) ([]pulsar.Consumer, chan pulsar.ConsumerMessage) {
		came := make(chan pulsar.ConsumerMessage, 100)
		options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, MessageChannel: came}
		return []pulsar.Consumer{replicated(t, client, options), replicated(t, client, options)}, came
	}
	next := func(t *testing.T, came chan pulsar.ConsumerMessage) (pulsar.ConsumerMessage, int) {
		select {
		case message := <-came:
			number, err := strconv.Atoi(string(message.Payload()))
			must(t, err)
			return message, number
		case <-time.After(patience):
			t.Fatal("waited in vain for a message")
			panic("unreachable")
		}
	}
	return &story{
		name: "key-shared in order",
		publish: func(t *testing.T, here pulsar.Client, topic string) {
			publish(t, here, topic, 0, 4*keys)
		},
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumers, came := two(t, here, topic)
			for range 4 * keys {
				if message, number := next(t, came); number/keys < number%keys {
					must(t, message.Consumer.Ack(message))
				}
			}
			return consumers
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			publish(t, there, topic, 4*keys, 5*keys)
			_, came := two(t, there, topic)
			expected := map[int]int{}
			for key := range keys {
				expected[key] = key
			}
			for range 5*keys - 6 {
				message, number := next(t, came)
				equal(t, "the next of its key", number/keys, expected[number%keys])
				expected[number%keys]++
				must(t, message.Consumer.Ack(message))
			}
			select {
			case message := <-came:
				t.Fatalf("%q came, but nothing should have", message.Payload())
			case <-time.After(quiet):
			}
		},
	}
}

func failover() *story {
	named := func(t *testing.T, client pulsar.Client, topic, name string) pulsar.Consumer {
		return replicated(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: name})
	}
	return &story{
		name:    "failover",
		publish: numbered(12),
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			active, standby := named(t, here, topic, "a"), named(t, here, topic, "b")
			messages := take(t, active, 12)
			must(t, active.AckCumulative(messages[4]))
			ackAll(t, active, messages[8], messages[6])
			return []pulsar.Consumer{active, standby}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			takeInOrder(t, named(t, there, topic, "a"), "5", "7", "9", "10", "11")
		},
	}
}

func cumulative() *story {
	return &story{
		name:    "exclusive cumulative",
		publish: numbered(12),
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumer := replicated(t, here, pulsar.ConsumerOptions{Topic: topic})
			must(t, consumer.AckCumulative(take(t, consumer, 12)[7]))
			return []pulsar.Consumer{consumer}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			takeInOrder(t, replicated(t, there, pulsar.ConsumerOptions{Topic: topic}), "8", "9", "10", "11")
		},
	}
}

func batch() *story {
	options := func(topic string) pulsar.ConsumerOptions {
		return pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true}
	}
	return &story{
		name: "a batch in part",
		publish: func(t *testing.T, here pulsar.Client, topic string) {
			producer := produce(t, here, pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: time.Minute})
			for number := range 8 {
				message := pulsar.ProducerMessage{Payload: fmt.Append(nil, number)}
				producer.SendAsync(context.Background(), &message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
			must(t, producer.Flush())
		},
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumer := replicated(t, here, options(topic))
			messages := take(t, consumer, 8)
			ackAll(t, consumer, messages[1], messages[4], messages[7])
			return []pulsar.Consumer{consumer}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			takeAll(t, replicated(t, there, options(topic)), "0", "2", "3", "5", "6")
		},
	}
}

func chunks() *story {
	body := func(number int) []byte { return bytes.Repeat([]byte{byte('a' + number)}, 50_000) }
	return &story{
		name: "chunks",
		publish: func(t *testing.T, here pulsar.Client, topic string) {
			producer := produce(t, here, pulsar.ProducerOptions{
				Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 20_000,
			})
			for number := range 3 {
				send(t, producer, pulsar.ProducerMessage{Payload: body(number)})
			}
		},
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumer := replicated(t, here, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			ackAll(t, consumer, take(t, consumer, 3)[1])
			return []pulsar.Consumer{consumer}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			consumer := replicated(t, there, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			for _, number := range []int{0, 2} {
				message := receive(t, consumer)
				equal(t, "what came is the right one", bytes.Equal(message.Payload(), body(number)), true)
				must(t, consumer.Ack(message))
			}
			nothingComes(t, consumer)
		},
	}
}

// delayed: even numbers come at once, odd ones when they are due, in either region.
func delayed() *story {
	var due time.Time
	return &story{
		name: "delayed",
		publish: func(t *testing.T, here pulsar.Client, topic string) {
			producer := produce(t, here, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
			due = time.Now().Add(10 * time.Second)
			for number := range 8 {
				message := pulsar.ProducerMessage{Payload: fmt.Append(nil, number)}
				if number%2 == 1 {
					message.DeliverAt = due
				}
				send(t, producer, message)
			}
		},
		begin: func(t *testing.T, here pulsar.Client, topic string) []pulsar.Consumer {
			consumer := replicated(t, here, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			messages := take(t, consumer, 4)
			equal(t, "the last that is not delayed", string(messages[3].Payload()), "6")
			ackAll(t, consumer, messages[0], messages[2])
			return []pulsar.Consumer{consumer}
		},
		goOn: func(t *testing.T, there pulsar.Client, topic string) {
			consumer := replicated(t, there, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
			left := []string{"1", "2", "3", "5", "6", "7"}
			for range 6 {
				message := receive(t, consumer)
				number, err := strconv.Atoi(string(message.Payload()))
				must(t, err)
				// Times on the wire are in milliseconds.
				if number%2 == 1 && time.Now().Before(due.Truncate(time.Millisecond)) {
					t.Fatalf("%d came before it was due", number)
				}
				left = remove(left, string(message.Payload()))
				must(t, consumer.Ack(message))
			}
			equal(t, "missing messages", len(left), 0)
			nothingComes(t, consumer)
		},
	}
}

func remove(from []string, one string) []string {
	left := []string{}
	for _, other := range from {
		if other != one {
			left = append(left, other)
		}
	}
	return left
}
