// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package rows has the measurements. rows.go is THE table of them, run.go runs them in turn, subcommands.go lists the processes that they
// start from this program; each sort of row has a file.
package rows

import (
	"context"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// adder books a measured line.
type adder func(what string, values ...report.Value)

// row is one measurement, which may make several lines.
type row struct {
	name, what string
	// args start a server for this row alone; without them it is put to the bare one that rows share.
	args []string
	only bool // where it is asked for by its very name
	etcd bool // compares servers on one etcd, by the programs of a peer
	// serve is what can be put to any API server; start is what needs the binary, or no server at all; compare are lines for which any API
	// server and its peer are measured by turns. A row has one of the three.
	serve   func(ctx context.Context, b *bench, t *load.Target, add adder) error
	start   func(ctx context.Context, b *bench, add adder) error
	compare []comparison
}

// rowsInOrder is THE table.
func rowsInOrder() []row {
	return []row{
		{name: "starts", what: "exec → ready", start: starts},
		{name: "rest", what: "memory and CPU at rest", start: atRest},
		{name: "create", what: "durable creates with 1, 16 and 128 clients", serve: creates},
		{name: "audit", what: "what roles and an audit log cost of creates", start: audited},
		{name: "explain", what: "what traces of writes cost of creates", start: explained},
		{name: "hooks", what: "what a webhook and a policy add to a create", args: load.Bare, serve: hooked},
		{name: "identify", what: "authenticate and authorize a service-account token", start: identify},
		{name: "get", what: "GET", serve: gets},
		{name: "update", what: "update (PUT)", serve: updates},
		{name: "merge", what: "merge patch", serve: merges},
		{name: "apply", what: "server-side apply, creating and changing", serve: applies},
		{name: "custom", what: "custom resources: create and GET", serve: customs},
		{name: "engine", what: "engine alone, 256 writers; opening 100,000 records", start: engine},
		{name: "list", what: "LIST of 5,000 pods", serve: lists},
		{name: "quiet", what: "a quiet user's p99 beside a noisy one", args: load.Bare, serve: quiet},
		{name: "fanout", what: "watch events to 200 watchers", serve: fanOut},
		{name: "clients", what: "requests as client-go sends them, beside the peer by turns", compare: asClients()},
		{name: "etcd", what: "Mortise and kube-apiserver on one etcd, by turns, as client-go sends requests", etcd: true, compare: onEtcd()},
		{name: "etcdmany", what: "servers on an etcd of many objects: opening, memory", start: manyInEtcd},
		{name: "threeservers", what: "5,000 simulated nodes on three servers and three members of etcd: ready, pods, at rest; takes minutes",
			start: threeServers, only: true},
		{name: "burst", what: "memory after client-go created and listed 5,000 pods, and 12 s later", args: load.Bare, serve: burst},
		{name: "large", what: "memory of 100,000 pods of 2 KB, all controllers in", args: []string{"--node", "none"}, serve: manyPodsHeld},
		{name: "watchers", what: "memory of 10,000 idle watchers over HTTP/2", args: load.Bare, serve: watchers},
		{name: "parts", what: "where the CPU of client-go's requests goes", start: parts},
		{name: "floor", what: "the least CPU of a request: system calls, TLS, HTTP/2, synced writes", start: floor},
		{name: "storm", what: "a quiet user's p99 while 50,000 pods are bound", start: storm},
		{name: "crd", what: "CRD: create → first CR accepted", serve: definitions},
		{name: "crdmemory", what: "memory per CRD", args: load.Bare, serve: definitionMemory},
		{name: "crdmany", what: "1,000 CRDs installed, 2,000 idle, and kubectl get beside them", args: []string{"--node", "simulated"},
			serve: manyDefinitions},
		{name: "crmemory", what: "memory per custom resource, beside ConfigMaps", args: load.Bare, serve: customMemory},
		{name: "schedule", what: "pods scheduled a second, created meanwhile", start: schedule},
		{name: "waiting", what: "pods scheduled a second that wait for it: plain, spread, with affinities, preempting, amid churn",
			start: scheduling},
		{name: "enormous", what: "500,000 pods onto 50,000 nodes; takes minutes, and 10 GB of disk", start: enormous, only: true},
		{name: "workloads", what: "a Deployment of 5,000 pods to 0 and back, 1,000 of 3, on simulated nodes", start: workloads},
		{name: "clean", what: "10,000 objects of one owner, and of one namespace, gone", start: cleaning},
		{name: "idle", what: "CPU at rest with 1,000 pods on 100 simulated nodes", start: idleCluster},
		{name: "autoscale", what: "1,000 autoscalers over 10,000 simulated pods: memory, CPU at rest, reaction to a step of the load",
			start: autoscaling},
		{name: "pods", what: "pods of real containers on a node of its own: ready, at once, memory and rest (root, containerd)", start: realPods},
		{name: "attach", what: "1,000 volumes attached to 10 simulated nodes, and detached: CPU", start: attaches},
		{name: "claims", what: "pods with a local volume, beside pods without one by turns: ready (root, containerd)", start: localClaims},
		{name: "services", what: "10,000 Services by nftables and by iptables, in network namespaces of their own (root)", start: serviceRules},
		{name: "plugins", what: "plug-ins of the node: allocation of a device, 10,000 devices that flap", start: nodePlugins},
		{name: "embed", what: "embedtest.New", start: embeds},
		{name: "aggregated", what: "bulk and watches through the proxy of an aggregated server", start: aggregated},
		{name: "growth", what: "cost in objects stored; memory per object; idle watchers", args: load.Bare, serve: growth},
	}
}
