// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

func TestCompression(t *testing.T) {
	for _, kind := range []pulsar.CompressionType{pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			t.Parallel()
			client, topic := connect(t), newTopic()
			consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
			producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, CompressionType: kind})
			body := bytes.Repeat([]byte("espresso "), 1000)
			send(t, producer, pulsar.ProducerMessage{Payload: body})
			equal(t, "body", string(receive(t, consumer).Payload()), string(body))
		})
	}
}

func TestChunks(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100_000,
	})
	body := make([]byte, 1<<20)
	_, err := rand.Read(body)
	must(t, err)
	send(t, producer, pulsar.ProducerMessage{Payload: body})
	message := receive(t, consumer)
	equal(t, "body", bytes.Equal(message.Payload(), body), true)
	must(t, consumer.Ack(message))
	nothingComes(t, consumer)
}

func TestEncryption(t *testing.T) {
	t.Parallel()
	client, topic, folder := connect(t), newTopic(), t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(folder, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	keys := crypto.NewFileKeyReader(
		write("public.pem", "PUBLIC KEY", public),
		write("private.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)),
	)
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
	})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"k"}},
	})
	sendNumbers(t, producer, 3)
	equal(t, "messages read", len(receiveNumbers(t, consumer, 3)), 3)
}

func TestAccessModes(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	alone := pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive}
	first := produce(t, client, alone)
	if _, err := client.CreateProducer(alone); err == nil {
		t.Fatal("two producers are exclusive")
	}
	if _, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic}); err == nil {
		t.Fatal("a shared producer joined an exclusive one")
	}
	came := make(chan error)
	go func() {
		waiting, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
		})
		if err == nil {
			_, err = waiting.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("second")})
		}
		came <- err
	}()
	select {
	case err := <-came:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(quiet):
	}
	first.Close()
	select {
	case err := <-came:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("it was not let in")
	}
}

type coffee struct {
	Name  string `json:"name"  avro:"name"`
	Shots int    `json:"shots" avro:"shots"`
}

const coffeeSchema = `{"type":"record","name":"coffee","fields":[{"name":"name","type":"string"},{"name":"shots","type":"int"}]}`

func TestSchemas(t *testing.T) {
	for name, schema := range map[string]pulsar.Schema{
		"json": pulsar.NewJSONSchema(coffeeSchema, nil), "avro": pulsar.NewAvroSchema(coffeeSchema, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, topic := connect(t), newTopic()
			consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: schema})
			producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
			send(t, producer, pulsar.ProducerMessage{Value: &coffee{"espresso", 2}})
			var got coffee
			message := receive(t, consumer)
			must(t, message.GetSchemaValue(&got))
			equal(t, "value", got, coffee{"espresso", 2})
			equal(t, "bytes of the schema's version", len(message.SchemaVersion()), 8)
		})
	}
}

func TestTableViews(t *testing.T) {
	t.Parallel()
	client, topic := connect(t), newTopic()
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	for number := range 6 {
		send(t, producer, pulsar.ProducerMessage{Payload: fmt.Append(nil, number), Key: fmt.Sprint(number % 3)})
	}
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: reflect.TypeOf([]byte{}),
	})
	must(t, err)
	defer view.Close()
	value := func(key string) string {
		found, _ := view.Get(key).([]byte)
		return string(found)
	}
	eventually(t, "the newest of each key", func() bool { return value("0") == "3" && value("2") == "5" })
	send(t, producer, pulsar.ProducerMessage{Payload: []byte("9"), Key: "1"})
	eventually(t, "a change", func() bool { return value("1") == "9" })
	equal(t, "keys", view.Size(), 3)
}
