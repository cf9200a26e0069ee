// SPDX-License-Identifier: Apache-2.0

// Enforces NetworkPolicies on the one node of an end-to-end cluster whose network plug-in enforces none. Iptables hands
// the first packet of each connection to this program (NFQUEUE), and the policy engine of kube-network-policies checks
// it. That project's own program needs a kernel with nft_queue.
//
//	enforcer -kubeconfig FILE -node NAME
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

const (
	chain = "E2E-POLICIES"
	queue = 100
)

// The node's own processes, such as the kubelet with its probes, reach every pod. At this point addresses of Services are
// already translated, those of clients not yet.
var rules = []string{
	"-N " + chain,
	"-A " + chain + " -m owner --uid-owner 0 -j RETURN",
	"-A " + chain + " -m conntrack --ctstate NEW -j NFQUEUE --queue-bypass --queue-num " + strconv.Itoa(queue),
	"-A POSTROUTING -j " + chain,
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "credentials that may list pods, namespaces and policies")
	node := flag.String("node", "", "the node's name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := watch(ctx, *kubeconfig, *node)
	if err == nil {
		err = enforce(ctx, engine)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// watch returns an engine that knows all policies, and follows their changes.
func watch(ctx context.Context, kubeconfig, node string) (*networkpolicy.PolicyEngine, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	known := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver})
	policies := networkpolicy.NewStandardNetworkPolicy(node, namespaces, pods, factory.Networking().V1().NetworkPolicies())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return networkpolicy.NewPolicyEngine(known, []api.PolicyEvaluator{policies}), nil
}

// enforce checks first packets until the context ends, and then lets everything pass again.
func enforce(ctx context.Context, engine *networkpolicy.PolicyEngine) error {
	packets, err := nfqueue.Open(&nfqueue.Config{
		NfQueue: queue, MaxPacketLen: 128, MaxQueueLen: 1024, Copymode: nfqueue.NfQnlCopyPacket,
		WriteTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer packets.Close()
	judge := func(one nfqueue.Attribute) int {
		verdict := nfqueue.NfDrop
		packet, err := network.ParsePacket(*one.Payload)
		if err == nil {
			var allowed bool
			if allowed, err = engine.EvaluatePacket(ctx, &packet); allowed {
				verdict = nfqueue.NfAccept
			}
		}
		if err != nil {
			log.Print(err)
		}
		if err := packets.SetVerdict(*one.PacketID, verdict); err != nil {
			log.Print(err)
		}
		return 0
	}
	failed := func(err error) int {
		log.Print(err)
		return 0
	}
	if err := packets.RegisterWithErrorFunc(ctx, judge, failed); err != nil {
		return err
	}
	defer forget()
	forget()
	for _, rule := range rules {
		if err := iptables(rule); err != nil {
			return err
		}
	}
	log.Print("enforcing")
	<-ctx.Done()
	return nil
}

// forget removes the rules, even if some are missing.
func forget() {
	for _, rule := range []string{"-D POSTROUTING -j " + chain, "-F " + chain, "-X " + chain} {
		_ = iptables(rule)
	}
}

func iptables(rule string) error {
	return exec.Command("iptables", strings.Fields("-w -t mangle "+rule)...).Run()
}
