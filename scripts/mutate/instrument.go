// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The environment variables that a test binary with mutants reads.
const (
	selected = "MUTANT"         // the number of the mutant that is switched on
	recorded = "MUTANT_REACHED" // the file whose byte N becomes 1 when mutant N is reached
)

// switches is the file that is added to the package.
const switches = `package %s

import (
	mutantErrors__ "errors"
	mutantOS__ "os"
	mutantStrconv__ "strconv"
	mutantAtomic__ "sync/atomic"
)

var (
	mutantSelected__, _ = mutantStrconv__.Atoi(mutantOS__.Getenv(%q))
	mutantRecord__, _   = mutantOS__.OpenFile(mutantOS__.Getenv(%q), mutantOS__.O_WRONLY, 0)
	mutantReached__     [%d]mutantAtomic__.Bool
)

func mutantError__() error { return mutantErrors__.New("mutant") }

func mutantOn__(n int) bool {
	if mutantRecord__ != nil && !mutantReached__[n].Swap(true) {
		mutantRecord__.WriteAt([]byte{1}, int64(n))
	}
	return n == mutantSelected__
}
`

// instrument writes the package's files with all mutants in them below dir and returns the path of the overlay by which the go
// command reads them in place of the package's own.
func instrument(dir string, p *pkg, mutants []*mutant, files []*source) (string, error) {
	replace := map[string]string{}
	write := func(original, text string) error {
		copied := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		replace[original] = copied
		return os.WriteFile(copied, []byte(text), 0o600)
	}
	for _, s := range files {
		if err := write(s.path, s.edited()); err != nil {
			return "", err
		}
	}
	if err := write(filepath.Join(p.Dir, "mutant__.go"), fmt.Sprintf(switches, p.Name, selected, recorded, len(mutants)+1)); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// edited is the file's text with its edits. Of edits that begin or end at one place, the longer ones are outside; of those of
// the same piece, the first.
func (s *source) edited() string {
	type insertion struct {
		at, closing, depth int
		text               string
	}
	var all []insertion
	for n, e := range s.edits {
		all = append(all, insertion{e.from, 1, (e.from-e.to)*len(s.edits)*2 + n, e.before},
			insertion{e.to, 0, (e.to-e.from)*len(s.edits)*2 - n, e.after})
	}
	slices.SortStableFunc(all, func(a, b insertion) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.closing, b.closing), cmp.Compare(a.depth, b.depth))
	})
	var out strings.Builder
	last := 0
	for _, i := range all {
		out.Write(s.text[last:i.at])
		out.WriteString(i.text)
		last = i.at
	}
	out.Write(s.text[last:])
	return out.String()
}
