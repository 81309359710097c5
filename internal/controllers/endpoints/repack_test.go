// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// set makes a subset of a text like "10.0.0.1 !10.0.0.2 : http/80 admin/81".
func set(t *testing.T, text string) corev1.EndpointSubset {
	t.Helper()
	var s corev1.EndpointSubset
	addresses, ports, _ := strings.Cut(text, ":")
	for _, word := range strings.Fields(addresses) {
		ip, notReady := strings.CutPrefix(word, "!")
		ip, uid, _ := strings.Cut(ip, "@")
		a := corev1.EndpointAddress{IP: ip}
		if uid != "" {
			a.TargetRef = &corev1.ObjectReference{UID: types.UID(uid)}
		}
		if notReady {
			s.NotReadyAddresses = append(s.NotReadyAddresses, a)
		} else {
			s.Addresses = append(s.Addresses, a)
		}
	}
	for _, word := range strings.Fields(ports) {
		p := corev1.EndpointPort{Protocol: corev1.ProtocolTCP}
		name, number, _ := strings.Cut(word, "/")
		p.Name = name
		if _, err := fmt.Sscan(number, &p.Port); err != nil {
			t.Fatal(err)
		}
		app := "kubernetes.io/h2c"
		p.AppProtocol = &app // one of its own each time
		s.Ports = append(s.Ports, p)
	}
	return s
}

func text(s corev1.EndpointSubset) string {
	var words, ports []string
	for i, list := range [][]corev1.EndpointAddress{s.Addresses, s.NotReadyAddresses} {
		for _, a := range list {
			word := strings.Repeat("!", i) + a.IP
			if a.TargetRef != nil {
				word += "@" + string(a.TargetRef.UID)
			}
			words = append(words, word)
		}
	}
	for _, p := range s.Ports {
		ports = append(ports, fmt.Sprintf("%s/%d", p.Name, p.Port))
	}
	slices.Sort(ports) // their order is that of hashes
	return strings.Join(words, " ") + " : " + strings.Join(ports, " ")
}

func TestRepack(t *testing.T) {
	for _, c := range []struct {
		name     string
		in, want []string
	}{
		{"nothing", nil, nil},
		{"pods with the same ports", []string{"2 : http/80 admin/81", "1 : http/80 admin/81"}, []string{"1 2 : admin/81 http/80"}},
		{"one port is not everywhere", []string{"1 : http/80 admin/81", "2 : http/80"}, []string{"1 2 : http/80", "1 : admin/81"}},
		{"ready and not", []string{"1 : http/80", "!2 : http/80"}, []string{"1 !2 : http/80"}},
		{"both ready and not is not", []string{"1 : http/80", "!1 : http/80"}, []string{"!1 : http/80"}},
		{"ready for one port only", []string{"1 : http/80", "!1 : admin/81"}, []string{"1 : http/80", "!1 : admin/81"}},
		{"one address, two pods", []string{"1@a : http/80", "1@b : http/80"}, []string{"1@a 1@b : http/80"}},
		{"no ports", []string{"1 :", "2 :"}, []string{"1 2 : "}},
		{"no addresses", []string{" : http/80"}, nil},
	} {
		var in []corev1.EndpointSubset
		for _, s := range c.in {
			in = append(in, set(t, s))
		}
		packed := Repack(in)
		var got []string
		for _, s := range packed {
			got = append(got, text(s))
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(c.want))
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
		slices.Reverse(in)
		again := Repack(in)
		if fmt.Sprint(textAll(again)) != fmt.Sprint(textAll(packed)) {
			t.Errorf("%s: the order of what comes in shows: %q, %q", c.name, textAll(again), textAll(packed))
		}
	}
}

func textAll(sets []corev1.EndpointSubset) (all []string) {
	for _, s := range sets {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, p.Name)
		}
		all = append(all, text(s)+" "+strings.Join(ports, ","))
	}
	return all
}
