// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"flag"
	"os"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestProgram is the program of a plug-in, whose protocol and directory are the arguments. It runs until it is killed.
func TestProgram(t *testing.T) {
	if flag.NArg() != 2 {
		return // a test, not a program
	}
	switch dir := flag.Arg(1); Protocol(flag.Arg(0)) {
	case Devices:
		p := newDevicePlugin("a", "b")
		p.answer = given(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"X": "1"}})
		p.run(t, dir)
		p.atOnce(t, dir)
	case Volumes:
		(&csiDriver{nodeID: "node"}).run(t, dir)
	}
	select {}
}

// A program that hangs in a call serves after the call was given up; one that dies in a call comes back. The report has kubelet's words.
func TestProgramsThatHang(t *testing.T) {
	for protocol, words := range map[Protocol]string{
		Devices: "Allocate failed due to device plugin Allocate rpc failed with err: rpc error: code = ",
		Volumes: "MountVolume.SetUp failed for volume \"bench\" : rpc error: code = ",
	} {
		t.Run(string(protocol), func(t *testing.T) {
			t.Parallel()
			program := []string{os.Args[0], "-test.run=^TestProgram$", "--", string(protocol), "{dir}"}
			r, err := Run(t.Context(), protocol, Options{Dir: short(t), Command: program, Output: t.Output()})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"serves after it hung in a call": words + "DeadlineExceeded", "comes back after it is killed": words + "Unavailable",
			}
			for _, c := range r.Checks {
				t.Logf("%-50s %-5s %10v  %s | %s", c.Name, c.Result, c.Took, c.What, c.Kubelet)
				if w, is := want[c.Name]; is && (c.Result != OK || !strings.Contains(c.Kubelet, w)) {
					t.Errorf("%s: want %q", c.Name, w)
				}
				delete(want, c.Name)
			}
			if len(want) > 0 {
				t.Errorf("missing: %v", want)
			}
		})
	}
}
