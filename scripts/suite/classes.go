// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
)

// class is a kind of tests that a machine can lack the means for.
type class struct {
	name  string
	wants string
	// tests matches the package and the name of tests that are skipped without those means, and only then.
	tests *regexp.Regexp
}

// classes are those of which a run under CI leaves out none. A test that is renamed is renamed here: a class without tests did not run.
var classes = []class{
	{"networks", "root", regexp.MustCompile(`/internal/agent/routes TestApply$`)},
	{"mounts", "root", regexp.MustCompile(`/internal/agent/volumes TestSystemHuge$`)},
	{"rules by nft", "root, nftables", regexp.MustCompile(`/internal/agent/proxy TestPackets/nftables$`)},
	{"rules by iptables", "root, iptables", regexp.MustCompile(`/internal/agent/proxy TestPackets/iptables$`)},
	{"the machine's containerd", "root, containerd, runc", regexp.MustCompile(`/internal/machine TestPrepare$`)},
	{"real containers", "root, containerd, runc, CNI's plug-ins", regexp.MustCompile(`/internal/agent TestEndToEnd$`)},
	{"nodes of real containers", "root, containerd, runc, CNI's plug-ins", regexp.MustCompile(`/test TestNode$`)},
	{"several nodes", "root, containerd, runc, CNI's plug-ins", regexp.MustCompile(`/test TestSeveralNodes$`)},
	{"first things", "root, containerd, runc, CNI's plug-ins, busybox", regexp.MustCompile(`/test TestStory$`)},
	{"nodes of releases", "root, containerd, runc, CNI's plug-ins, busybox", regexp.MustCompile(`/test TestNodeOfRelease$`)},
	{"the life of the package", "root, containerd, runc, CNI's plug-ins, nftables, dpkg", regexp.MustCompile(`/test TestPackage$`)},
	{"a stock ingress controller", "root, containerd, runc, CNI's plug-ins, busybox", regexp.MustCompile(`/test/ingress TestSkipper$`)},
	{"another runtime", "root, containerd, crun", regexp.MustCompile(`/test TestRuntimeClass$`)},
	{"recordings of kube-apiserver", "../shared/recordings", regexp.MustCompile(`/test TestRecordings$`)},
}

// missing tells of the classes of which no test ran.
func (t *tally) missing(of []class) []string {
	var out []string
	for _, c := range of {
		ran := false
		for name, did := range t.results {
			ran = ran || did && c.tests.MatchString(name)
		}
		if !ran {
			out = append(out, fmt.Sprintf("%s: no test of them ran; they want %s", c.name, c.wants))
		}
	}
	return out
}
