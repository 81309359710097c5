// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
)

// RunPreScorePlugins prepares the scorers for the feasible nodes.
func (p *Profile) RunPreScorePlugins(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo) *framework.Status {
	var skip sets.Set[string]
	for _, x := range p.preScore {
		s := x.PreScore(ctx, state, pod, nodes)
		if s.IsSkip() {
			if skip == nil {
				skip = sets.New[string]()
			}
			skip.Insert(x.Name())
			continue
		}
		if !s.IsSuccess() {
			return framework.AsStatus(fmt.Errorf("running PreScore plugin %q: %w", x.Name(), s.AsError()))
		}
	}
	state.SetSkipScorePlugins(skip)
	return nil
}

// RawScores gives the score of a node by the scorer of an index that was found before; it is how the core offers what it
// has kept. Found is false where nothing is kept.
type RawScores interface {
	Raw(node, scorer int) (score int64, found bool)
	Keep(node, scorer int, score int64)
}

// RunScorePlugins scores all nodes by all scorers.
func (p *Profile) RunScorePlugins(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo) ([]framework.NodePluginScores, *framework.Status) {
	table, s := p.Score(ctx, state, pod, nodes, nil)
	if !s.IsSuccess() {
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

// ScoreTable is the scores of nodes, a column a plug-in.
type ScoreTable struct {
	Columns []ScoreColumn
	Total   []int64
}

// ScoreColumn is one plug-in's scores.
type ScoreColumn struct {
	Plugin        string
	Raw, Weighted []int64
}

// Score fills a table. Raw scores of node-local scorers are taken from kept where they are there, and kept.
func (p *Profile) Score(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo, kept RawScores) (*ScoreTable, *framework.Status) {
	skip := state.GetSkipScorePlugins()
	table := &ScoreTable{Total: make([]int64, len(nodes)), Columns: make([]ScoreColumn, 0, len(p.score))}
	var list framework.NodeScoreList
	for k := range p.score {
		x := &p.score[k]
		if len(skip) > 0 && skip.Has(x.Name()) {
			continue
		}
		col := ScoreColumn{Plugin: x.Name(), Raw: make([]int64, len(nodes))}
		for i, n := range nodes {
			if x.local && kept != nil {
				if raw, found := kept.Raw(i, k); found {
					col.Raw[i] = raw
					continue
				}
			}
			raw, s := x.Score(ctx, state, pod, n)
			if !s.IsSuccess() {
				return nil, framework.AsStatus(fmt.Errorf("running Score plugin %q: %w", x.Name(), s.AsError())).WithPlugin(x.Name())
			}
			col.Raw[i] = raw
			if x.local && kept != nil {
				kept.Keep(i, k, raw)
			}
		}
		col.Weighted = col.Raw
		if e := x.ScoreExtensions(); e != nil {
			list = list[:0]
			for i, n := range nodes {
				list = append(list, framework.NodeScore{Name: n.Node().Name, Score: col.Raw[i]})
			}
			if s := e.NormalizeScore(ctx, state, pod, list); !s.IsSuccess() {
				return nil, framework.AsStatus(fmt.Errorf("running NormalizeScore plugin %q: %w", x.Name(), s.AsError()))
			}
			col.Weighted = make([]int64, len(nodes))
			for i := range list {
				col.Weighted[i] = list[i].Score
			}
		} else {
			col.Weighted = append([]int64(nil), col.Raw...)
		}
		for i, score := range col.Weighted {
			if score < framework.MinNodeScore || score > framework.MaxNodeScore {
				return nil, framework.AsStatus(fmt.Errorf("plugin %q returns an invalid score %v, it should in the range of [%v, %v] after normalizing",
					x.Name(), score, framework.MinNodeScore, framework.MaxNodeScore))
			}
			col.Weighted[i] = score * x.weight
			table.Total[i] += col.Weighted[i]
		}
		table.Columns = append(table.Columns, col)
	}
	return table, nil
}

// Scorers is how many scorers there are; the indices of [RawScores] are below it.
func (p *Profile) Scorers() int { return len(p.score) }
