// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/mortise-dev/mortise/internal/agent/doctor"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/cli"
	"github.com/mortise-dev/mortise/internal/machine"
)

// examine lets `mortise node doctor` look at the node of this machine.
func examine(ctx context.Context, o cli.DoctorOptions) ([]cli.Symptom, error) {
	config, _, err := kubeletconfig.Load(o.Kubelet.ConfigFile, o.Kubelet.ConfigDir)
	if err != nil {
		return nil, err
	}
	if o.CRISocket == "" {
		if o.CRISocket, err = machine.Socket(o.DataDir); err != nil {
			return nil, err
		}
		if machine.Answers(ctx, o.CRISocket) != nil {
			o.CRISocket = machine.HostSocket
		}
	}
	var out []cli.Symptom
	for _, f := range doctor.Examine(ctx, doctor.Options{
		DataDir: o.DataDir, RootDir: o.Kubelet.Root(o.DataDir), Socket: o.CRISocket, CgroupRoot: config.CgroupRoot,
		CgroupDriver: config.CgroupDriver, Older: o.Older, Fix: o.Fix,
	}) {
		out = append(out, cli.Symptom{Check: f.Check, State: string(f.State), What: f.What, Do: f.Do})
	}
	return out, nil
}
