// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/net"
)

const (
	mostWarned     = 4096 // runes of all warnings of an answer; from there on each is cut
	mostOfAWarning = 256  // runes of one that is cut
)

// warnings are sent as Warning headers, each once. When they come to too much they are all cut, and those that come when
// even that is too much are not sent.
type warnings struct {
	mu      sync.Mutex
	header  http.Header
	said    []said
	known   map[string]struct{}
	runes   int
	cutting bool
}

type said struct{ agent, text string }

// AddWarning implements k8s.io/apiserver's warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text == "" || w.cutting && w.runes >= mostWarned {
		return
	}
	if _, ok := w.known[text]; ok {
		return
	}
	if w.known == nil {
		w.known = map[string]struct{}{}
	}
	w.known[text] = struct{}{}
	w.said = append(w.said, said{agent, text})
	if w.cutting || w.runes+utf8.RuneCountInString(text) <= mostWarned {
		w.send(agent, text)
		return
	}
	w.cutting, w.runes = true, 0
	w.header.Del("Warning")
	for _, s := range w.said {
		w.send(s.agent, s.text)
	}
}

func (w *warnings) send(agent, text string) {
	n := utf8.RuneCountInString(text)
	if w.cutting && n > mostOfAWarning {
		text, n = string([]rune(text)[:mostOfAWarning]), mostOfAWarning
	}
	h, err := warningHeader(agent, text)
	if err != nil {
		return // text that no header can carry
	}
	w.runes += n
	w.header.Add("Warning", h)
}

func warningHeader(agent, text string) (string, error) {
	if agent == "" {
		agent = "-"
	}
	return net.NewWarningHeader(299, agent, text)
}
