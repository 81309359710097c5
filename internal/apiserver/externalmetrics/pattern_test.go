// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"queue", "queue", true}, {"queue", "queues", false}, {"queue", "", false},
		{"*", "", true}, {"*", "queue", true}, {"queue-*", "queue-", true}, {"queue-*", "queue", false},
		{"*-lag", "kafka-lag", true}, {"*-lag", "kafka-lags", false}, {"s*-kafka-*", "s0-kafka-orders", true},
		{"s*-kafka-*", "t0-kafka-orders", false}, {"a*a", "a", false}, {"a*a", "aa", true}, {"a*b*c", "abbc", true}, {"a*b*c", "acb", false},
		{"**", "x", true}, {"a**b", "ab", true}, {"*ab*ab", "ab", false}, {"*ab", "abab", true}, {"a.c", "abc", false}, {"[a]", "a", false},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
	if !matchesAny(nil, "x") || !matchesAny([]string{"a", "x"}, "x") || matchesAny([]string{"a", "b"}, "x") {
		t.Error("matchesAny is wrong")
	}
}

func FuzzMatches(f *testing.F) {
	f.Add("s*-kafka-*", "s0-kafka-orders")
	f.Add("*ab*ab", "abab")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 100 || len(name) > 100 || strings.ContainsRune(pattern+name, '\uFFFD') || !utf8.ValidString(pattern+name) {
			return
		}
		var b strings.Builder
		for i, part := range strings.Split(pattern, "*") {
			if i > 0 {
				b.WriteString("(?s:.*)")
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
		if want := regexp.MustCompile(`\A(?:` + b.String() + `)\z`).MatchString(name); matches(pattern, name) != want {
			t.Errorf("matches(%q, %q) = %v", pattern, name, !want)
		}
	})
}

func TestMetric(t *testing.T) {
	for _, c := range []struct {
		path, namespace, name string
		ok                    bool
	}{
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue", "shop", "queue", true},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/Queue/", "shop", "queue", true},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/status", "shop", "status", true},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue/x", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta1/namespaces//queue", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta1/queue", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta1", "", "", false},
		{"/apis/external.metrics.k8s.io/v1beta2/namespaces/shop/queue", "", "", false},
		{"/apis/custom.metrics.k8s.io/v1beta1/namespaces/shop/queue", "", "", false},
	} {
		namespace, name, ok := metric(c.path)
		if ok != c.ok || ok && (namespace != c.namespace || name != c.name) {
			t.Errorf("metric(%q) = %q, %q, %v", c.path, namespace, name, ok)
		}
	}
}
