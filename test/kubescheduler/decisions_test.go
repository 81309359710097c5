// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

var (
	clusters = flag.Int("clusters", 2000, "how many random clusters")
	first    = flag.Uint64("seed", 1, "the seed of the first")
)

// steps is how much happens in a cluster: a pod to place, a pod that goes, a node that comes, goes or changes.
const steps = 30

// TestDecisions: what the scheduler picks, with all that it keeps from one decision to the next, is a node that kube-scheduler's
// plug-ins let through and rank highest; what it finds no node for has none, for the same reasons in the same words.
func TestDecisions(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(discard{})
	var next atomic.Uint64
	var placed, refused atomic.Int64
	g, ctx := errgroup.WithContext(t.Context())
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			client := fake.NewClientset(
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "default"}}},
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "other"}}})
			factory := informers.NewSharedInformerFactory(client, 0)
			ref, err := newReference(ctx, client, factory)
			if err != nil {
				return err
			}
			factory.StartWithContext(ctx)
			factory.WaitForCacheSync(ctx.Done())
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= uint64(*clusters) {
					return nil
				}
				c := &cluster{
					seed: *first + n, dice: newDice(*first + n), ref: ref, cache: cache.New(), snapshot: cache.NewSnapshot(), factory: factory,
					nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
				}
				c.core = core.New(core.Options{Percentage: 100, Rand: rand.New(rand.NewPCG(c.seed, 2))})
				c.profile, err = profile.New(ctx, corev1.DefaultSchedulerName, builtin.SchedulerPlugins(),
					profile.Clients{Client: client, Informers: factory, Lister: c.snapshot})
				if err != nil {
					return err
				}
				if n == 0 {
					factory.StartWithContext(ctx)
				}
				factory.WaitForCacheSync(ctx.Done())
				if err := c.live(ctx, t); err != nil {
					return err
				}
				placed.Add(c.placed)
				refused.Add(c.refused)
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d clusters: %d pods placed on one of the best nodes, %d without a node for the same reasons", *clusters, placed.Load(),
		refused.Load())
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// cluster is one cluster as both schedulers see it.
type cluster struct {
	seed uint64
	*dice
	ref      *reference
	cache    *cache.Cache
	snapshot *cache.Snapshot
	core     *core.Core
	profile  *profile.Profile

	factory informers.SharedInformerFactory

	nodes           map[string]*corev1.Node
	pods            map[string]*corev1.Pod
	placed, refused int64
}

// live plays a cluster's steps.
func (c *cluster) live(ctx context.Context, t *testing.T) error {
	many := 2 + c.IntN(14)
	if err := c.storage(c.factory, many); err != nil {
		return err
	}
	for i := range many {
		c.setNode(c.node(i))
	}
	templates := make([]*corev1.Pod, 2+c.IntN(5))
	for i := range templates {
		templates[i] = c.template()
	}
	for range steps {
		switch n := c.IntN(20); {
		case n < 15:
			if ok, err := c.place(ctx, t, c.pod(pick(c.dice, templates...))); err != nil || !ok {
				return errors.Join(err, c.end(ctx))
			}
		case n < 17 && len(c.pods) > 0:
			if err := c.removePod(pick(c.dice, names(c.pods)...)); err != nil {
				return err
			}
		case n < 19:
			c.setNode(c.node(c.IntN(many + 1)))
		case len(c.nodes) > 1:
			if err := c.removeNode(pick(c.dice, names(c.nodes)...)); err != nil {
				return err
			}
		}
	}
	return c.end(ctx)
}

func (c *cluster) setNode(n *corev1.Node) {
	if old := c.nodes[n.Name]; old != nil {
		c.ref.scheduler.Cache.UpdateNode(klog.Background(), old, n)
	} else {
		c.ref.scheduler.Cache.AddNode(klog.Background(), n)
	}
	c.cache.SetNode(n)
	c.nodes[n.Name] = n
}

// removeNode takes a node away, and its pods.
func (c *cluster) removeNode(name string) error {
	for _, pod := range names(c.pods) {
		if c.pods[pod].Spec.NodeName == name {
			if err := c.removePod(pod); err != nil {
				return err
			}
		}
	}
	node := c.nodes[name]
	delete(c.nodes, name)
	c.cache.RemoveNode(name)
	return c.ref.scheduler.Cache.RemoveNode(klog.Background(), node)
}

func (c *cluster) removePod(name string) error {
	pod := c.pods[name]
	delete(c.pods, name)
	c.cache.RemovePod(pod.UID)
	return c.ref.scheduler.Cache.RemovePod(klog.Background(), pod)
}

// end empties the reference's cache for the next cluster.
func (c *cluster) end(ctx context.Context) error {
	for _, name := range names(c.nodes) {
		if err := c.removeNode(name); err != nil {
			return err
		}
	}
	return c.ref.scheduler.Cache.UpdateSnapshot(klog.FromContext(ctx), c.ref.snapshot)
}

// place lets both decide on a pod, and reports whether they agree.
func (c *cluster) place(ctx context.Context, t *testing.T, pod *corev1.Pod) (bool, error) {
	want, err := c.ref.judge(ctx, pod)
	if err != nil {
		return false, err
	}
	c.cache.Update(c.snapshot)
	d, err := c.core.Schedule(ctx, c.profile, c.snapshot, profile.NewCycleState(), pod, c.profile.Signature(ctx, pod))
	var fit *core.FitError
	switch {
	case errors.As(err, &fit) && len(want.total) == 0:
		c.refused++
		if fit.Error() != want.message {
			c.complain(t, pod, "no node, and says\n  %s\nkube-scheduler says\n  %s", fit.Error(), want.message)
			return false, nil
		}
		return true, nil
	case errors.As(err, &fit):
		c.complain(t, pod, "no node: %s\nkube-scheduler's best are %v", fit.Error(), names(want.best()))
		return false, nil
	case err != nil:
		return false, err
	case len(want.total) == 0:
		c.complain(t, pod, "%s\nkube-scheduler has no node: %s", d.Node, want.message)
		return false, nil
	case d.Feasible != len(want.total):
		c.complain(t, pod, "%d feasible nodes\nkube-scheduler has %v", d.Feasible, names(want.total))
		return false, nil
	case !want.best()[d.Node]:
		mine, err := c.afresh(ctx, pod, want)
		if err != nil {
			return false, err
		}
		var of []string
		for _, name := range append(names(want.best()), d.Node) {
			of = append(of, name+" "+want.scores[name]+"\n  here  "+mine[name])
		}
		c.complain(t, pod, "%s with %d\nkube-scheduler's best are %v with %d\n%s", d.Node, want.total[d.Node], names(want.best()),
			want.total[names(want.best())[0]], strings.Join(of, "\n"))
		return false, nil
	}
	c.placed++
	pod = pod.DeepCopy()
	pod.Spec.NodeName = d.Node
	c.pods[pod.Name] = pod
	c.cache.SetPod(pod)
	return true, c.ref.scheduler.Cache.AddPod(klog.Background(), pod)
}

// afresh are our scores of the feasible nodes, worked out with nothing kept.
func (c *cluster) afresh(ctx context.Context, pod *corev1.Pod, of verdict) (map[string]string, error) {
	state := profile.NewCycleState()
	if _, st, _ := c.profile.RunPreFilter(ctx, state, pod, c.snapshot.Nodes()); !st.IsSuccess() {
		return nil, st.AsError()
	}
	var feasible []fwk.NodeInfo
	for _, n := range c.snapshot.Nodes() {
		if _, ok := of.total[n.Node().Name]; ok {
			feasible = append(feasible, n)
		}
	}
	if st := c.profile.RunPreScorePlugins(ctx, state, pod, feasible); !st.IsSuccess() {
		return nil, st.AsError()
	}
	scored, st := c.profile.RunScorePlugins(ctx, state, pod, feasible)
	if !st.IsSuccess() {
		return nil, st.AsError()
	}
	scores := map[string]string{}
	for _, n := range scored {
		scores[n.Name] = fmt.Sprint(n.TotalScore, n.Scores)
	}
	return scores, nil
}

func (c *cluster) complain(t *testing.T, pod *corev1.Pod, format string, args ...any) {
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Error(err)
	}
	t.Errorf("seed %d, %s: "+format+"\n%s", append(append([]any{c.seed, pod.Name}, args...), text)...)
}
