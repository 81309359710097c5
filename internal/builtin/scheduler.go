// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/defaultbinder"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/defaultpreemption"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/dynamicresources"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/imagelocality"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/interpodaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodedeclaredfeatures"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodename"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeports"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeunschedulable"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodevolumelimits"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/podtopologyspread"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/prioritysort"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/schedulinggates"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/tainttoleration"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/volumebinding"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/volumerestrictions"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/volumezone"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// SchedulerPlugins is the scheduler's plug-ins in kube-scheduler's default order and with its weights.
func SchedulerPlugins() profile.Registry {
	return profile.Registry{
		{Name: schedulinggates.Name, New: schedulinggates.New},
		{Name: prioritysort.Name, New: prioritysort.New},
		{Name: nodename.Name, New: nodename.New},
		{Name: nodeunschedulable.Name, New: nodeunschedulable.New},
		{Name: tainttoleration.Name, New: tainttoleration.New, Weight: 3},
		{Name: nodeaffinity.Name, New: nodeaffinity.New, Weight: 2},
		{Name: nodeports.Name, New: nodeports.New},
		{Name: noderesources.FitName, New: noderesources.NewFit, Weight: 1},
		{Name: volumerestrictions.Name, New: volumerestrictions.New},
		{Name: nodevolumelimits.Name, New: nodevolumelimits.New},
		{Name: volumebinding.Name, New: volumebinding.New},
		{Name: volumezone.Name, New: volumezone.New},
		{Name: podtopologyspread.Name, New: podtopologyspread.New, Weight: 2},
		{Name: interpodaffinity.Name, New: interpodaffinity.New, Weight: 2},
		{Name: dynamicresources.Name, New: dynamicresources.New, Weight: 2},
		{Name: defaultpreemption.Name, New: defaultpreemption.New},
		{Name: noderesources.BalancedName, New: noderesources.NewBalanced, Weight: 1},
		{Name: imagelocality.Name, New: imagelocality.New, Weight: 1},
		{Name: defaultbinder.Name, New: defaultbinder.New},
		{Name: nodedeclaredfeatures.Name, New: nodedeclaredfeatures.New},
	}
}
