// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

func oneNode() fwk.NodeInfo {
	return nodeinfo.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, nil)
}

func make1(t *testing.T, clients profile.Clients, plugins ...fwk.Plugin) *profile.Profile {
	t.Helper()
	r := registry(append([]fwk.Plugin{sorter{"Q"}}, plugins...)...)
	if !slices.ContainsFunc(plugins, func(p fwk.Plugin) bool { _, ok := p.(fwk.BindPlugin); return ok }) {
		r = append(r, registry(binder{named: "Binder"})...)
	}
	p, err := profile.New(t.Context(), "s", r, clients)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scripted answers at every point but binding and sorting what it is told to, and notes that it was asked.
type scripted struct {
	named
	log     *[]string
	answers map[string]*fwk.Status // by point; nil is success
	nodes   sets.Set[string]       // of PreFilter
	nominee string                 // of PostFilter
	wait    time.Duration
}

func (s *scripted) at(point string) *fwk.Status {
	if s.log != nil {
		*s.log = append(*s.log, s.Name()+"."+point)
	}
	if st := s.answers[point]; st != nil {
		return st.Clone()
	}
	return nil
}

func (s *scripted) PreFilter(context.Context, fwk.CycleState, *corev1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	st := s.at("PreFilter")
	if s.nodes == nil {
		return nil, st
	}
	return &fwk.PreFilterResult{NodeNames: s.nodes}, st
}
func (s *scripted) PreFilterExtensions() fwk.PreFilterExtensions { return s }
func (s *scripted) AddPod(context.Context, fwk.CycleState, *corev1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return s.at("AddPod")
}
func (s *scripted) RemovePod(context.Context, fwk.CycleState, *corev1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return s.at("RemovePod")
}
func (s *scripted) Filter(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeInfo) *fwk.Status {
	return s.at("Filter")
}
func (s *scripted) PostFilter(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	st := s.at("PostFilter")
	if s.nominee == "" {
		return nil, st
	}
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: s.nominee}}, st
}
func (s *scripted) PreScore(context.Context, fwk.CycleState, *corev1.Pod, []fwk.NodeInfo) *fwk.Status {
	return s.at("PreScore")
}
func (s *scripted) Score(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	return 1, s.at("Score")
}
func (s *scripted) ScoreExtensions() fwk.ScoreExtensions { return s }
func (s *scripted) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	scores[0].Score = 50
	return s.at("Normalize")
}
func (s *scripted) Reserve(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	return s.at("Reserve")
}
func (s *scripted) Unreserve(context.Context, fwk.CycleState, *corev1.Pod, string) { s.at("Unreserve") }
func (s *scripted) Permit(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.Status, time.Duration) {
	return s.at("Permit"), s.wait
}

func script(name string, log *[]string, point string, code fwk.Code, reason ...string) *scripted {
	return &scripted{named: named(name), log: log, answers: map[string]*fwk.Status{point: fwk.NewStatus(code, reason...)}}
}

func TestPreFilter(t *testing.T) {
	nodes := func(name string, names ...string) *scripted {
		return &scripted{named: named(name), nodes: sets.New(names...)}
	}
	for _, c := range []struct {
		name    string
		plugins []*scripted
		code    fwk.Code
		plugin  string
		message string
		left    []string // nil: all
		asked   string
		skipped []string
	}{
		{name: "nodes intersect", plugins: []*scripted{nodes("A", "x", "y"), nodes("B", "y", "z")}, left: []string{"y"}, asked: "A B"},
		{
			name: "nothing is left", plugins: []*scripted{nodes("A", "x"), nodes("B", "y"), nodes("C", "x")}, code: fwk.UnschedulableAndUnresolvable,
			message: "node(s) didn't satisfy plugin(s) [A B] simultaneously", left: []string{}, asked: "A B",
		},
		{name: "one leaves nothing", plugins: []*scripted{nodes("A")}, code: fwk.UnschedulableAndUnresolvable,
			message: "node(s) didn't satisfy plugin A", left: []string{}, asked: "A"},
		{name: "skipped", plugins: []*scripted{script("A", nil, "PreFilter", fwk.Skip), nodes("B", "y")}, left: []string{"y"}, asked: "A B",
			skipped: []string{"A"}},
		{
			name: "after a refusal that preemption may resolve the others are asked", asked: "A B C", code: fwk.Unschedulable, plugin: "A",
			message: "later", skipped: []string{"B"},
			plugins: []*scripted{script("A", nil, "PreFilter", fwk.Unschedulable, "later"), script("B", nil, "PreFilter", fwk.Skip), {named: "C"}},
		},
		{
			name: "after one that it does not they are not", asked: "A", code: fwk.UnschedulableAndUnresolvable, plugin: "A", message: "never",
			plugins: []*scripted{script("A", nil, "PreFilter", fwk.UnschedulableAndUnresolvable, "never"), {named: "B"}},
		},
		{
			name: "an error", asked: "A", code: fwk.Error, plugin: "A", message: `running PreFilter plugin "A": boom`,
			plugins: []*scripted{script("A", nil, "PreFilter", fwk.Error, "boom"), {named: "B"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log []string
			var plugins []fwk.Plugin
			for _, x := range c.plugins {
				x.log = &log
				plugins = append(plugins, x)
			}
			state := profile.NewCycleState()
			result, st, _ := make1(t, profile.Clients{}, plugins...).RunPreFilter(t.Context(), state, &corev1.Pod{}, []fwk.NodeInfo{oneNode()})
			if st.Code() != c.code || c.code != fwk.Success && (st.Plugin() != c.plugin || st.Message() != c.message) {
				t.Errorf("status %v %q of %v", st.Code(), st.Message(), st)
			}
			if c.left == nil != result.AllNodes() || c.left != nil && !result.NodeNames.Equal(sets.New(c.left...)) {
				t.Errorf("left: %v, want %v", result, c.left)
			}
			if got := strings.ReplaceAll(strings.Join(log, " "), ".PreFilter", ""); got != c.asked {
				t.Errorf("asked %s, want %s", got, c.asked)
			}
			if got := sets.List(state.GetSkipFilterPlugins()); !slices.Equal(got, c.skipped) {
				t.Errorf("skipped %v, want %v", got, c.skipped)
			}
		})
	}
}

func TestWhatIsSkippedIsNotAsked(t *testing.T) {
	var log []string
	a := &scripted{named: "A", log: &log, answers: map[string]*fwk.Status{"PreFilter": fwk.NewStatus(fwk.Skip),
		"PreScore": fwk.NewStatus(fwk.Skip)}}
	p, state, pod := make1(t, profile.Clients{}, a, &scripted{named: "B", log: &log}), profile.NewCycleState(), &corev1.Pod{}
	nodes := []fwk.NodeInfo{oneNode()}
	info, _ := nodeinfo.NewPodInfo(pod)
	p.RunPreFilter(t.Context(), state, pod, nodes)
	p.RunFilterPlugins(t.Context(), state, pod, nodes[0])
	p.RunPreFilterExtensionAddPod(t.Context(), state, pod, info, nodes[0])
	p.RunPreFilterExtensionRemovePod(t.Context(), state, pod, info, nodes[0])
	p.RunPreScorePlugins(t.Context(), state, pod, nodes)
	scores, st := p.RunScorePlugins(t.Context(), state, pod, nodes)
	if !st.IsSuccess() || len(scores[0].Scores) != 1 || scores[0].TotalScore != 50 || scores[0].RawScores[0].Score != 1 {
		t.Errorf("scores %+v: %s", scores, st.Message())
	}
	want := "A.PreFilter B.PreFilter B.Filter B.AddPod B.RemovePod A.PreScore B.PreScore B.Score B.Normalize"
	if got := strings.Join(log, " "); got != want {
		t.Errorf("asked\n%s, want\n%s", got, want)
	}
}

func TestPostFilter(t *testing.T) {
	refuse := func(name, reason, nominee string) *scripted {
		s := script(name, nil, "PostFilter", fwk.Unschedulable, reason)
		s.nominee = nominee
		return s
	}
	for _, c := range []struct {
		name    string
		plugins []*scripted
		code    fwk.Code
		plugin  string
		message string
		nominee string
		asked   int
	}{
		{name: "the first that succeeds", plugins: []*scripted{refuse("A", "no", ""), {named: "B", nominee: "n"}, {named: "C"}}, nominee: "n",
			asked: 2},
		{name: "all refuse", plugins: []*scripted{refuse("A", "no", "x"), refuse("B", "neither", "")}, code: fwk.Unschedulable, plugin: "A",
			message: "no, neither", nominee: "x", asked: 2},
		{name: "an end", plugins: []*scripted{script("A", nil, "PostFilter", fwk.UnschedulableAndUnresolvable, "never"), {named: "B"}},
			code: fwk.UnschedulableAndUnresolvable, plugin: "A", message: "never", asked: 1},
		{name: "an error", plugins: []*scripted{script("A", nil, "PostFilter", fwk.Error, "boom"), {named: "B"}}, code: fwk.Error, plugin: "A",
			message: "boom", asked: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log []string
			var plugins []fwk.Plugin
			for _, x := range c.plugins {
				x.log = &log
				plugins = append(plugins, x)
			}
			result, st := make1(t, profile.Clients{}, plugins...).RunPostFilter(t.Context(), profile.NewCycleState(), &corev1.Pod{}, nil)
			if st.Code() != c.code || c.code != fwk.Success && (st.Plugin() != c.plugin || st.Message() != c.message) {
				t.Errorf("status %v %q", st.Code(), st.Message())
			}
			nominee := ""
			if result != nil && result.NominatingInfo != nil {
				nominee = result.NominatedNodeName
			}
			if nominee != c.nominee {
				t.Errorf("nominated: %q, want %q", nominee, c.nominee)
			}
			if len(log) != c.asked {
				t.Errorf("asked: %v", log)
			}
		})
	}
}

func TestReserveAndUnreserve(t *testing.T) {
	var log []string
	p := make1(t, profile.Clients{}, &scripted{named: "A", log: &log}, script("B", &log, "Reserve", fwk.Unschedulable, "full"),
		&scripted{named: "C", log: &log})
	st := p.RunReservePluginsReserve(t.Context(), profile.NewCycleState(), &corev1.Pod{}, "n")
	if st.Code() != fwk.Unschedulable || st.Plugin() != "B" {
		t.Errorf("status %v of %s", st.Code(), st.Plugin())
	}
	p.RunReservePluginsUnreserve(t.Context(), profile.NewCycleState(), &corev1.Pod{}, "n")
	want := "A.Reserve B.Reserve C.Unreserve B.Unreserve A.Unreserve" // all, although C never reserved
	if got := strings.Join(log, " "); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

func TestPermit(t *testing.T) {
	for _, c := range []struct {
		name   string
		decide func(w fwk.WaitingPod) bool
		code   fwk.Code
		plugin string
		text   string
	}{
		{name: "allowed by both", decide: func(w fwk.WaitingPod) bool { w.Allow("A"); w.Allow("B"); return true }},
		{name: "rejected", decide: func(w fwk.WaitingPod) bool { return w.Reject("B", "no") }, code: fwk.Unschedulable, plugin: "B", text: "no"},
		{name: "preempted, which is no refusal", decide: func(w fwk.WaitingPod) bool { return w.Preempt("X", "for another") }, code: fwk.Error,
			plugin: "X", text: "waiting on permit for pod: for another"},
		{
			name: "the shortest time runs out", decide: func(w fwk.WaitingPod) bool { w.Allow("B"); return true },
			code: fwk.Unschedulable, plugin: "A", text: "rejected due to timeout after waiting 1m0s at plugin A",
		},
		{name: "decided once", decide: func(w fwk.WaitingPod) bool { w.Allow("A"); w.Allow("B"); return !w.Reject("A", "too late") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				waiting := profile.NewWaiting()
				wait := func(name string, d time.Duration) *scripted {
					s := script(name, nil, "Permit", fwk.Wait)
					s.wait = d
					return s
				}
				p := make1(t, profile.Clients{Waiting: waiting}, wait("A", time.Minute), wait("B", time.Hour)) // an hour is cut to 15 minutes
				other := make1(t, profile.Clients{Waiting: waiting})
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
				if st := p.RunPermit(t.Context(), profile.NewCycleState(), pod, "n"); !st.IsWait() || !p.Waits(pod) {
					t.Fatalf("status %v", st.Code())
				}
				// Other profiles of the same scheduler see the pod too.
				var seen []types.UID
				other.IterateOverWaitingPods(func(w fwk.WaitingPod) { seen = append(seen, w.GetPod().UID) })
				w := other.GetWaitingPod("u")
				if len(seen) != 1 || w == nil || len(w.GetPendingPlugins()) != 2 {
					t.Fatalf("waiting: %v, %v", seen, w)
				}
				go func() {
					if !c.decide(w) {
						t.Error("the decision was not taken")
					}
				}()
				st := p.WaitOnPermit(t.Context(), pod)
				if st.Code() != c.code || c.code != fwk.Success && (st.Plugin() != c.plugin || st.Message() != c.text) {
					t.Errorf("status %v %q", st.Code(), st.Message())
				}
				if p.Waits(pod) || other.GetWaitingPod("u") != nil || other.RejectWaitingPod("u") {
					t.Error("the pod still waits")
				}
			})
		})
	}
}

func TestPermitWaitsNoLongerThanAQuarterOfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script("A", nil, "Permit", fwk.Wait)
		s.wait = time.Hour
		p, pod, begin := make1(t, profile.Clients{}, s), &corev1.Pod{}, time.Now()
		p.RunPermit(t.Context(), profile.NewCycleState(), pod, "n")
		if st := p.WaitOnPermit(t.Context(), pod); !st.IsRejected() || time.Since(begin) != 15*time.Minute {
			t.Errorf("%v after %v", st.Code(), time.Since(begin))
		}
	})
}

func TestPermitRefusesAtOnce(t *testing.T) {
	wait := script("A", nil, "Permit", fwk.Wait)
	wait.wait = time.Minute
	p, pod := make1(t, profile.Clients{}, wait, script("B", nil, "Permit", fwk.Unschedulable, "no")), &corev1.Pod{}
	if st := p.RunPermit(t.Context(), profile.NewCycleState(), pod, "n"); !st.IsRejected() || st.Plugin() != "B" || p.Waits(pod) {
		t.Errorf("status %v of %s", st.Code(), st.Plugin())
	}
}

// preBinder does what it is told to before binding.
type preBinder struct {
	named
	flight   *fwk.Status
	parallel bool
	do       func(ctx context.Context) *fwk.Status
}

func (p preBinder) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return &fwk.PreBindPreFlightResult{AllowParallel: p.parallel}, p.flight
}

func (p preBinder) PreBind(ctx context.Context, _ fwk.CycleState, _ *corev1.Pod, _ string) *fwk.Status {
	return p.do(ctx)
}

func TestPreBind(t *testing.T) {
	skip := fwk.NewStatus(fwk.Skip)
	t.Run("skipped ones are not asked", func(t *testing.T) {
		ran := false
		p, state := make1(t, profile.Clients{}, preBinder{named: "A", flight: skip,
			do: func(context.Context) *fwk.Status { ran = true; return nil }}), profile.NewCycleState()
		if st := p.RunPreBindPreFlights(t.Context(), state, &corev1.Pod{}, "n"); !st.IsSkip() {
			t.Errorf("flight: %v", st.Code())
		}
		if st := p.RunPreBind(t.Context(), state, &corev1.Pod{}, "n"); !st.IsSuccess() || ran {
			t.Errorf("%v, ran %v", st.Code(), ran)
		}
	})
	t.Run("neighbours that allow it run at once, others alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var now, most atomic.Int32
			work := func(context.Context) *fwk.Status {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				return nil
			}
			p, state := make1(t, profile.Clients{},
				preBinder{"A", nil, true, work}, preBinder{"B", nil, true, work}, preBinder{"C", nil, false, work}, preBinder{"D", nil, true, work}),
				profile.NewCycleState()
			begin := time.Now()
			if st := p.RunPreBindPreFlights(t.Context(), state, &corev1.Pod{}, "n"); !st.IsSuccess() {
				t.Fatal(st.Message())
			}
			if st := p.RunPreBind(t.Context(), state, &corev1.Pod{}, "n"); !st.IsSuccess() {
				t.Fatal(st.Message())
			}
			if took := time.Since(begin); most.Load() != 2 || took != 3*time.Second { // A with B, then C, then D
				t.Errorf("%d at once, %v in all", most.Load(), took)
			}
		})
	})
	t.Run("one that fails calls the others off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, state := make1(t, profile.Clients{},
				preBinder{"A", nil, true, func(ctx context.Context) *fwk.Status { <-ctx.Done(); return fwk.AsStatus(ctx.Err()) }},
				preBinder{"B", nil, true, func(context.Context) *fwk.Status { return fwk.AsStatus(errors.New("boom")) }},
				preBinder{"C", nil, false, func(context.Context) *fwk.Status { t.Error("C ran"); return nil }}), profile.NewCycleState()
			p.RunPreBindPreFlights(t.Context(), state, &corev1.Pod{}, "n")
			if st := p.RunPreBind(t.Context(), state, &corev1.Pod{}, "n"); st.Message() != `running PreBind plugin "B": boom` {
				t.Errorf("status %q", st.Message())
			}
		})
	})
	t.Run("a refusal is none before there is work", func(t *testing.T) {
		p := make1(t, profile.Clients{}, preBinder{named: "A", flight: fwk.NewStatus(fwk.Unschedulable)})
		st := p.RunPreBindPreFlights(t.Context(), profile.NewCycleState(), &corev1.Pod{}, "n")
		if st.Code() != fwk.Error || !strings.Contains(st.Message(), `returned "Unschedulable", which is unsupported`) {
			t.Errorf("status %v %q", st.Code(), st.Message())
		}
	})
	t.Run("a preemptor calls a pod off until it is done", func(t *testing.T) {
		p := make1(t, profile.Clients{})
		ctx, cancel := context.WithCancelCause(t.Context())
		p.AddPodInPreBind("u", cancel)
		if !p.GetPodInPreBind("u").CancelPod("for another") || context.Cause(ctx).Error() != "for another" ||
			p.GetPodInPreBind("u").MarkPrebound() {
			t.Error("the pod was not called off")
		}
		p.RemovePodInPreBind("u")
		if p.GetPodInPreBind("u") != nil {
			t.Error("the pod is still there")
		}
		p.AddPodInPreBind("u", cancel)
		if !p.GetPodInPreBind("u").MarkPrebound() || p.GetPodInPreBind("u").CancelPod("too late") {
			t.Error("the pod was called off too late")
		}
	})
}

func TestBind(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second *fwk.Status
		asked         string
		message       string
	}{
		{name: "the first that takes the pod", first: fwk.NewStatus(fwk.Skip), asked: "A B"},
		{name: "and no other", asked: "A"},
		{name: "an error", first: fwk.NewStatus(fwk.Error, "boom"), asked: "A", message: `running Bind plugin "A": boom`},
		{name: "a refusal", first: fwk.NewStatus(fwk.Unschedulable, "no"), asked: "A", message: "no"},
		{name: "all skip", first: fwk.NewStatus(fwk.Skip), second: fwk.NewStatus(fwk.Skip), asked: "A B",
			message: "all Bind plugins skipped the pod"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log []string
			p := make1(t, profile.Clients{}, binder{"A", c.first, &log}, binder{"B", c.second, &log})
			st := p.RunBind(t.Context(), profile.NewCycleState(), &corev1.Pod{}, "n")
			if st.IsSuccess() != (c.message == "") || st.Message() != c.message {
				t.Errorf("status %v %q", st.Code(), st.Message())
			}
			if got := strings.Join(log, " "); got != c.asked {
				t.Errorf("asked %s, want %s", got, c.asked)
			}
		})
	}
}

func TestScoresOutOfRangeAreErrors(t *testing.T) {
	p := make1(t, profile.Clients{}, scorer{"A", 101})
	_, st := p.RunScorePlugins(t.Context(), profile.NewCycleState(), &corev1.Pod{}, []fwk.NodeInfo{oneNode()})
	want := `applying score defaultWeights on Score plugins: plugin "A" returns an invalid score 101, it should in the range of [0, 100] after normalizing`
	if st.Message() != want {
		t.Errorf("status %q", st.Message())
	}
}

func TestTheHandleIsComplete(t *testing.T) {
	p := make1(t, profile.Clients{Parallelism: 3})
	var done atomic.Int32
	p.Parallelizer().Until(t.Context(), 100, func(int) { done.Add(1) }, "test")
	if done.Load() != 100 {
		t.Errorf("%d pieces of 100 were done", done.Load())
	}
	groups := p.PodGroupManager()
	if _, err := groups.PodGroups().Get("ns", "g"); err == nil {
		t.Error("there is a group")
	}
	if _, err := groups.PodGroupStates().Get("ns", "g"); err == nil {
		t.Error("there is a group's state")
	}
	if p.APIDispatcher() != nil || p.APICacher() != nil {
		t.Error("calls are dispatched, which 1.37 does not by default")
	}
	if d := cmp.Diff("s", p.ProfileName()); d != "" {
		t.Error(d)
	}
}
