// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func connectAdmin(t *testing.T) pulsaradmin.Client {
	t.Helper()
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: os.Getenv("INTEROP_ADMIN_URL")})
	must(t, err)
	return admin
}

func nameOf(t *testing.T, topic string) utils.TopicName {
	t.Helper()
	name, err := utils.GetTopicName(topic)
	must(t, err)
	return *name
}

func TestProducersAndConsumersFollowNewPartitions(t *testing.T) {
	t.Parallel()
	client, admin, topic := connect(t), connectAdmin(t), newTopic()
	must(t, admin.Topics().Create(nameOf(t, topic), 2))
	consumer := subscribe(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, AutoDiscoveryPeriod: 200 * time.Millisecond,
	})
	producer := produce(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, PartitionsAutoDiscoveryInterval: 200 * time.Millisecond,
	})
	sent, used := 0, map[int32]bool{}
	sendOne := func() {
		id := send(t, producer, pulsar.ProducerMessage{Payload: fmt.Append(nil, sent)})
		used[id.PartitionIdx()] = true
		sent++
	}
	for range 10 {
		sendOne()
	}
	equal(t, "partitions at first", len(used), 2)
	must(t, admin.Topics().Update(nameOf(t, topic), 4))
	eventually(t, "the producer to use all partitions", func() bool {
		sendOne()
		return len(used) == 4
	})
	equal(t, "different messages", len(receiveNumbers(t, consumer, sent)), sent)
	stats, err := admin.Topics().GetPartitionedStats(nameOf(t, topic), true)
	must(t, err)
	equal(t, "partitions", len(stats.Partitions), 4)
}

// The client has no call for shadows: a property makes one.
func TestAPropertyMakesAShadowTopic(t *testing.T) {
	t.Parallel()
	client, admin, source, shadow := connect(t), connectAdmin(t), newTopic(), newTopic()
	must(t, admin.Topics().Create(nameOf(t, source), 0))
	having := map[string]string{"PULSAR.SHADOW_SOURCE": source}
	must(t, admin.Topics().CreateWithProperties(nameOf(t, shadow), 0, having))
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: shadow})
	producer := produce(t, client, pulsar.ProducerOptions{Topic: source, DisableBatching: true})
	sent := send(t, producer, pulsar.ProducerMessage{Payload: []byte("seen in both")})
	message := receive(t, consumer)
	equal(t, "content", string(message.Payload()), "seen in both")
	equal(t, "ledger", message.ID().LedgerID(), sent.LedgerID())
	equal(t, "entry", message.ID().EntryID(), sent.EntryID())
	if err := admin.Topics().Delete(nameOf(t, source), true, true); err == nil {
		t.Fatal("a topic that has a shadow was deleted")
	}
	properties, err := admin.Topics().GetProperties(nameOf(t, shadow))
	must(t, err)
	equal(t, "its source", properties["PULSAR.SHADOW_SOURCE"], source)
	stats, err := admin.Topics().GetStats(nameOf(t, shadow))
	must(t, err)
	equal(t, "subscriptions of the shadow", len(stats.Subscriptions), 1)
	must(t, admin.Topics().Delete(nameOf(t, shadow), true, true))
	must(t, admin.Topics().Delete(nameOf(t, source), true, true))
}

func TestTenantsAndNamespaces(t *testing.T) {
	t.Parallel()
	admin := connectAdmin(t)
	clusters, err := admin.Clusters().List()
	must(t, err)
	must(t, admin.Tenants().Create(utils.TenantData{Name: "gophers", AllowedClusters: clusters}))
	must(t, admin.Namespaces().CreateNamespace("gophers/burrow"))
	must(t, admin.Namespaces().SetRetention("gophers/burrow", utils.NewRetentionPolicies(10, 100)))
	retention, err := admin.Namespaces().GetRetention("gophers/burrow")
	must(t, err)
	equal(t, "retention", *retention, utils.NewRetentionPolicies(10, 100))
	must(t, admin.Namespaces().SetNamespaceReplicationClusters("gophers/burrow", clusters))
	replicated, err := admin.Namespaces().GetNamespaceReplicationClusters("gophers/burrow")
	must(t, err)
	equal(t, "clusters", len(replicated), len(clusters))
	must(t, admin.Namespaces().DeleteNamespace("gophers/burrow"))
	must(t, admin.Tenants().Delete("gophers"))
	if _, err := admin.Tenants().Get("gophers"); err == nil {
		t.Fatal("a deleted tenant still exists")
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	admin := connectAdmin(t)
	clusters, err := admin.Clusters().List()
	must(t, err)
	must(t, admin.Tenants().Create(utils.TenantData{Name: "guards", AllowedClusters: clusters}))
	must(t, admin.Namespaces().CreateNamespace("guards/gate"))
	gate, err := utils.GetNamespaceName("guards/gate")
	must(t, err)
	name := nameOf(t, "persistent://guards/gate/door")
	must(t, admin.Namespaces().GrantNamespacePermission(*gate, "app", []utils.AuthAction{"produce"}))
	must(t, admin.Topics().GrantPermission(name, "app", []utils.AuthAction{"consume"}))
	onGate, err := admin.Namespaces().GetNamespacePermissions(*gate)
	must(t, err)
	equal(t, "on the namespace", fmt.Sprint(onGate), "map[app:[produce]]")
	onDoor, err := admin.Topics().GetPermissions(name)
	must(t, err)
	equal(t, "on the topic", fmt.Sprint(onDoor), "map[app:[consume produce]]")
	policies, err := admin.Namespaces().GetPolicies("guards/gate")
	must(t, err)
	equal(t, "among the policies", fmt.Sprint(policies.AuthPolicies.NamespaceAuth), "map[app:[produce]]")
	must(t, admin.Topics().RevokePermission(name, "app"))
	must(t, admin.Namespaces().RevokeNamespacePermission(*gate, "app"))
	if admin.Topics().RevokePermission(name, "app") == nil {
		t.Fatal("a permission that does not exist was revoked")
	}
	left, err := admin.Topics().GetPermissions(name)
	must(t, err)
	equal(t, "left", len(left), 0)
	must(t, admin.Namespaces().DeleteNamespace("guards/gate"))
	must(t, admin.Tenants().Delete("guards"))
}

func TestTopicsAndSubscriptions(t *testing.T) {
	t.Parallel()
	client, admin, topic := connect(t), connectAdmin(t), newTopic()
	name := nameOf(t, topic)
	must(t, admin.Topics().CreateWithProperties(name, 0, map[string]string{"owner": "gopher"}))
	properties, err := admin.Topics().GetProperties(name)
	must(t, err)
	equal(t, "a property", properties["owner"], "gopher")
	must(t, admin.Subscriptions().Create(name, "s", utils.Earliest))
	producer := produce(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := sendNumbers(t, producer, 10)
	stats, err := admin.Topics().GetStats(name)
	must(t, err)
	equal(t, "backlog", stats.Subscriptions["s"].MsgBacklog, int64(10))
	equal(t, "publishers", len(stats.Publishers), 1)
	last, err := admin.Topics().GetLastMessageID(name)
	must(t, err)
	equal(t, "the last entry", last.EntryID, ids[9].EntryID())
	must(t, admin.Subscriptions().SkipMessages(name, "s", 4))
	must(t, admin.Subscriptions().ClearBacklog(name, "s"))
	at := utils.MessageID{LedgerID: ids[7].LedgerID(), EntryID: ids[7].EntryID(), PartitionIndex: -1}
	must(t, admin.Subscriptions().ResetCursorToMessageID(name, "s", at))
	consumer := subscribe(t, client, pulsar.ConsumerOptions{Topic: topic})
	equal(t, "after the reset", string(receive(t, consumer).Payload()), "7")
	if admin.Topics().Delete(name, false, true) == nil {
		t.Fatal("a topic in use was deleted")
	}
	found, err := admin.Topics().Lookup(name)
	must(t, err)
	equal(t, "its broker", found.BrokerURL, os.Getenv("INTEROP_SERVICE_URL"))
	must(t, admin.Topics().Delete(name, true, true))
}
