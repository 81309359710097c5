// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// RunPreScorePlugins runs the PreScore plug-ins for the feasible nodes.
func (p *Profile) RunPreScorePlugins(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.PreScore, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	var skip sets.Set[string]
	for i, x := range p.preScore {
		began := metrics.Begin(sampled)
		s := x.PreScore(ctx, state, pod, nodes)
		p.meter.Ran(x.Name(), metrics.PreScore, s, began)
		if !s.IsSkip() {
			p.asked.preScore[i].Add(1)
		}
		if s.IsSkip() {
			if skip == nil {
				skip = sets.New[string]()
			}
			skip.Insert(x.Name())
			continue
		}
		if !s.IsSuccess() {
			return failure(x, s, "running PreScore plugin %q: %w")
		}
	}
	state.SetSkipScorePlugins(skip)
	return nil
}

// RawScores is the core's cache of raw scores: Raw fills in the cached scores of the scorer at an index, and appends to missing the nodes
// without one. Keep caches a new score.
type RawScores interface {
	Raw(scorer int, scores []int64, missing []int) []int
	Keep(node, scorer int, score int64)
}

// RunScorePlugins scores all nodes with all scorers.
func (p *Profile) RunScorePlugins(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) ([]framework.NodePluginScores, *framework.Status) {
	var table ScoreTable
	if s := p.Score(ctx, state, pod, nodes, nil, &table); !s.IsSuccess() {
		return nil, s
	}
	out := make([]framework.NodePluginScores, len(nodes))
	for i, n := range nodes {
		out[i] = framework.NodePluginScores{Name: n.Node().Name, TotalScore: table.Total[i]}
		for _, col := range table.Columns {
			out[i].RawScores = append(out[i].RawScores, framework.PluginScore{Name: col.Plugin, Score: col.Raw[i]})
			out[i].Scores = append(out[i].Scores, framework.PluginScore{Name: col.Plugin, Score: col.Weighted[i]})
		}
	}
	return out, nil
}

// ScoreTable holds the scores of nodes, one column for each plug-in. The zero value is ready; a table that is filled again reuses its
// memory.
type ScoreTable struct {
	Columns []ScoreColumn
	Total   []int64

	list    framework.NodeScoreList
	missing []int
}

// column appends a column for n nodes.
func (t *ScoreTable) column(plugin string, n int) *ScoreColumn {
	if len(t.Columns) < cap(t.Columns) {
		t.Columns = t.Columns[:len(t.Columns)+1]
	} else {
		t.Columns = append(t.Columns, ScoreColumn{})
	}
	col := &t.Columns[len(t.Columns)-1]
	col.Plugin, col.Raw, col.Weighted = plugin, resize(col.Raw, n), resize(col.Weighted, n)
	return col
}

func resize(s []int64, n int) []int64 {
	if cap(s) < n {
		return make([]int64, n)
	}
	return s[:n]
}

// ScoreColumn holds one plug-in's scores.
type ScoreColumn struct {
	Plugin        string
	Raw, Weighted []int64
}

// Score fills a table. It takes the raw scores of node-local scorers from kept where they are cached, and caches the others.
func (p *Profile) Score(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo, kept RawScores,
	table *ScoreTable) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.Score, st, began) }(p.meter.Began())
	skip := state.GetSkipScorePlugins()
	table.Columns, table.Total = table.Columns[:0], resize(table.Total, len(nodes))
	clear(table.Total)
	in := scoring{state: state, pod: pod, nodes: nodes, kept: kept}
	for k := range p.score {
		x := &p.score[k]
		if len(skip) > 0 && skip.Has(x.Name()) {
			continue
		}
		col := table.column(x.Name(), len(nodes))
		if s := p.raw(ctx, &in, k, table, col.Raw); !s.IsSuccess() {
			return s
		}
		copy(col.Weighted, col.Raw)
		if x.scale != nil {
			x.scale(col.Weighted)
		} else if e := x.ScoreExtensions(); e != nil {
			table.list = table.list[:0]
			for i, n := range nodes {
				table.list = append(table.list, framework.NodeScore{Name: n.Node().Name, Score: col.Raw[i]})
			}
			if s := e.NormalizeScore(ctx, state, pod, table.list); !s.IsSuccess() {
				return failure(x, s, "running Normalize on Score plugins: plugin %q failed with: %w")
			}
			for i := range table.list {
				col.Weighted[i] = table.list[i].Score
			}
		}
		for i, score := range col.Weighted {
			if score < framework.MinNodeScore || score > framework.MaxNodeScore {
				return framework.AsStatus(fmt.Errorf(
					"applying score defaultWeights on Score plugins: plugin %q returns an invalid score %v, it should in the range of [%v, %v] after normalizing",
					x.Name(), score, framework.MinNodeScore, framework.MaxNodeScore))
			}
			col.Weighted[i] = score * x.weight
			table.Total[i] += col.Weighted[i]
		}
	}
	return nil
}

// scoring is a pod, the nodes to score, and the cache of raw scores.
type scoring struct {
	state framework.CycleState
	pod   *corev1.Pod
	nodes []framework.NodeInfo
	kept  RawScores
}

// raw fills out with the scores of the plug-in at an index, before normalisation.
func (p *Profile) raw(ctx context.Context, in *scoring, index int, table *ScoreTable, out []int64) *framework.Status {
	x := &p.score[index]
	keep, missing := x.local && in.kept != nil && (x.fleeting == nil || !x.fleeting.Fleeting(in.state, in.pod)), table.missing[:0]
	if keep {
		missing = in.kept.Raw(index, out, missing)
	} else {
		for i := range in.nodes {
			missing = append(missing, i)
		}
	}
	table.missing = missing
	sampled := p.meter.Samples(in.state)
	x.asked.Add(len(missing))
	for _, i := range missing {
		began := metrics.Begin(sampled && i%16 == 0)
		score, s := x.Score(ctx, in.state, in.pod, in.nodes[i])
		p.meter.Ran(x.Name(), metrics.Score, s, began)
		if !s.IsSuccess() {
			return failure(x, s, "running Score plugins: plugin %q failed with: %w")
		}
		out[i] = score
		if keep {
			in.kept.Keep(i, index, score)
		}
	}
	return nil
}

// Scorers returns the number of scorers; the indices of [RawScores] are below it.
func (p *Profile) Scorers() int { return len(p.score) }
