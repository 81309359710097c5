// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

// register is a ConfigMap as the model sees it. version 0 is: there, at a resourceVersion that nobody was told.
type register struct {
	there   bool
	value   string
	version int64
}

// action is one call about one register.
type action struct {
	verb, name, value string
	expect            int64 // the resourceVersion that an update names
	call, back        int64 // nanoseconds since the soak began
	result            result
}

type result struct {
	unknown                    bool // whether it was done is not known
	done, absent, there, stale bool
	refused                    string
	found                      register
}

func (a action) String() string {
	return fmt.Sprintf("%9.4f-%9.4f %-7s %-4s value=%s expect=%d → %+v", float64(a.call)/1e9, float64(a.back)/1e9, a.verb, a.name, a.value,
		a.expect, a.result)
}

// fight does one thing after the other to registers that others write too, until an outcome is not known.
func (s *soaking) fight(ctx context.Context, c kubernetes.Interface, r *rand.Rand, count func()) {
	api := c.CoreV1().ConfigMaps("soak")
	last := map[string]int64{} // what this client saw last
	for ctx.Err() == nil {
		name := fmt.Sprintf("r%d", r.IntN(soakRegisters))
		a := action{name: name, value: fmt.Sprint("v", s.ids.Add(1)), call: int64(time.Since(s.began))}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"register": "yes"}},
			Data: map[string]string{"v": a.value}}
		trial := r.IntN(12) == 0
		var dry []string
		if trial {
			dry = []string{metav1.DryRunAll}
		}
		body := fmt.Sprintf(`{"data":{"v":%q}}`, a.value)
		var err error
		switch n := r.IntN(16); {
		case n < 4:
			a.verb = "create"
			m, err = api.Create(ctx, m, metav1.CreateOptions{DryRun: dry})
		case n < 7:
			a.verb, a.expect = "update", last[name]
			if a.expect == 0 {
				a.verb = "get"
				m, err = api.Get(ctx, name, metav1.GetOptions{})
				break
			}
			m.ResourceVersion = strconv.FormatInt(a.expect, 10)
			m, err = api.Update(ctx, m, metav1.UpdateOptions{DryRun: dry})
		case n < 8:
			a.verb = "merge"
			m, err = api.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: dry})
		case n < 9:
			a.verb = "strat"
			m, err = api.Patch(ctx, name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{DryRun: dry})
		case n < 10:
			a.verb = "json"
			m, err = api.Patch(ctx, name, types.JSONPatchType, []byte(fmt.Sprintf(`[{"op":"replace","path":"/data/v","value":%q}]`, a.value)),
				metav1.PatchOptions{DryRun: dry})
		case n < 12:
			a.verb = "apply"
			m, err = api.Apply(ctx, corev1ac.ConfigMap(name, "soak").WithLabels(map[string]string{"register": "yes"}).WithData(
				map[string]string{"v": a.value}), metav1.ApplyOptions{FieldManager: fmt.Sprint("m", r.IntN(3)), Force: true, DryRun: dry})
		case n < 14:
			a.verb = "delete"
			err = api.Delete(ctx, name, metav1.DeleteOptions{DryRun: dry})
			m = nil
		default:
			a.verb = "get"
			m, err = api.Get(ctx, name, metav1.GetOptions{})
		}
		a.back = int64(time.Since(s.began))
		a.result = outcome(err)
		if trial && a.verb != "get" {
			if a.result.unknown {
				return
			}
			continue // that it left nothing is for the model to see
		}
		if a.result.done && m != nil {
			a.result.found = registerOf(m)
			last[name] = a.result.found.version
		} else {
			delete(last, name)
		}
		s.book(a)
		if a.result.unknown {
			s.unknown.Add(1)
			return
		}
		if a.result.done && a.verb != "get" {
			count()
		}
	}
}

// outcome is what an error says of what was done.
func outcome(err error) result {
	switch {
	case err == nil:
		return result{done: true}
	case apierrors.IsNotFound(err):
		return result{absent: true}
	case apierrors.IsAlreadyExists(err):
		return result{there: true}
	case apierrors.IsConflict(err):
		return result{stale: true}
	case apierrors.IsTooManyRequests(err) || apierrors.IsInvalid(err):
		return result{refused: err.Error()}
	}
	return result{unknown: true, refused: err.Error()}
}

func registerOf(m *corev1.ConfigMap) register {
	v, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		v = -1
	}
	return register{there: true, value: m.Data["v"], version: v}
}

func (s *soaking) book(a action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, a)
	if a.verb == "get" || a.verb == "delete" || !a.result.done && !a.result.unknown {
		return
	}
	s.tried[a.value] = true
	if a.result.done {
		if was, twice := s.past[a.result.found.version]; twice {
			s.t.Errorf("resourceVersion %d was given twice:\n%s\n%s", a.result.found.version, was, a)
		}
		if a.result.found.version <= s.floor {
			s.t.Errorf("the server was at %d when it started, and gave: %s", s.floor, a)
		}
		s.past[a.result.found.version] = a
	}
}

// tail is the end of the history, by when calls began.
func (s *soaking) tail() []string {
	h := slices.Clone(s.history)
	slices.SortFunc(h, func(a, b action) int { return int(a.call - b.call) })
	var out []string
	for _, a := range h[max(0, len(h)-tailLength):] {
		out = append(out, a.String())
	}
	return out
}

// judge ends a round: what the server holds now is read, and all that was said since the last start must fit.
func (s *soaking) judge(p *program) {
	s.t.Helper()
	c := p.client()
	call := int64(time.Since(s.began))
	list, err := c.CoreV1().ConfigMaps("soak").List(s.t.Context(), metav1.ListOptions{LabelSelector: "register"})
	if err != nil {
		s.t.Fatal(err)
	}
	now := map[string]register{}
	for i := range list.Items {
		now[list.Items[i].Name] = registerOf(&list.Items[i])
	}
	version, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.floor == 0 { // nothing was said yet
		s.begun, s.state, s.from, s.floor = now, maps.Clone(now), version, version
		return
	}
	s.catchUp(p, now, version)
	byName := map[string][]porcupine.Operation{}
	for _, a := range s.history {
		back := a.back
		if a.result.unknown {
			back = call // the server was dead by then
		}
		byName[a.name] = append(byName[a.name], porcupine.Operation{Input: a, Call: a.call, Output: a.result, Return: back})
	}
	for i := range soakRegisters {
		name := fmt.Sprintf("r%d", i)
		before, found := s.begun[name], now[name]
		end := action{verb: "get", name: name, call: call, back: call + 1, result: result{done: found.there, absent: !found.there, found: found}}
		ops := append(byName[name], porcupine.Operation{Input: end, Call: end.call, Output: end.result, Return: end.back})
		model := registerModel(before)
		switch porcupine.CheckOperationsTimeout(model, ops, 20*time.Second) {
		case porcupine.Illegal:
			s.t.Errorf("the history of %s, which began with %+v and ended with %+v, is not linearizable:\n%s", name, before, found, describeOps(ops))
		case porcupine.Unknown:
			s.t.Errorf("the history of %s was too long to judge: %d calls", name, len(ops))
		}
	}
	s.judgeLists()
	s.judgeWatch()
	s.owned.judge(s.t, p)
	if !s.t.Failed() {
		s.begun, s.floor = now, version
		s.forget()
	}
}

func describeOps(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	out := ""
	for _, o := range ops[max(0, len(ops)-tailLength):] {
		out += fmt.Sprintln(o.Input)
	}
	return out
}

// registerModel says which answers are right in which state; a write of unknown outcome may have been done or not.
func registerModel(first register) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{first} },
		Step: func(state, input, output any) []any {
			return stepRegister(state.(register), input.(action), output.(result))
		},
	}
	return m.ToModel()
}

func stepRegister(s register, a action, r result) []any {
	written := register{there: true, value: a.value, version: r.found.version}
	grew := r.unknown || s.version < r.found.version
	can := false // whether the write can be done in this state
	switch a.verb {
	case "create":
		can = !s.there
	case "update":
		can = s.there && (s.version == 0 || s.version == a.expect)
	case "merge", "strat", "json", "delete":
		can = s.there
	case "apply":
		can = true
	case "get":
		switch {
		case r.done:
			if s.there && s.value == r.found.value && (s.version == 0 || s.version == r.found.version) {
				return []any{r.found}
			}
			return nil
		case r.absent:
			if !s.there {
				return []any{s}
			}
			return nil
		}
		return []any{s}
	}
	if a.verb == "delete" {
		written, grew = register{}, true
	}
	switch {
	case r.unknown && can:
		return []any{s, written}
	case r.unknown, r.refused != "":
		return []any{s}
	case r.done && can && grew && (a.verb == "delete" || r.found.value == a.value):
		return []any{written}
	case r.absent && !s.there && a.verb != "create", r.there && s.there && a.verb == "create":
		return []any{s}
	case r.stale && (a.verb != "update" || !s.there || s.version != a.expect):
		return []any{s}
	}
	return nil
}
