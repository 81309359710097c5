// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/durable"
)

// Cache keeps tokens in a directory, a file a source, readable by its owner alone.
type Cache struct {
	Dir string
	Now func() time.Time
	// Client is the process that asks. One that asks again while the token that it got is good was refused with it, and gets
	// another.
	Client int
}

// bounds of the cache.
const (
	maxTokens  = 64
	maxClients = 32
	margin     = time.Minute // before its end a token is not given out any more; a tenth of its life, if that is less
)

type kept struct {
	Token
	Got    time.Time `json:"got"`
	Served []int     `json:"served"` // the processes that got it, the newest last
}

// Get returns the cached token, or a new one. notKept is set if the token could not be cached; the token is valid
// nevertheless.
func (c *Cache) Get(ctx context.Context, s Source) (t Token, notKept, err error) {
	if c.Dir == "" || s.Name() == "" {
		t, err = s.Get(ctx)
		return t, nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		t, err2 := s.Get(ctx)
		return t, fmt.Errorf("make cache: %w", err), err2
	}
	file := filepath.Join(c.Dir, s.Name()+".json")
	unlock, err := lock(file + ".lock") // one asks, the others wait for its answer
	if err != nil {
		t, err2 := s.Get(ctx)
		return t, fmt.Errorf("lock cache: %w", err), err2
	}
	defer unlock()
	if k, ok := c.read(file); ok && c.good(k) && !slices.Contains(k.Served, c.Client) {
		k.Served = append(k.Served, c.Client)
		if n := len(k.Served) - maxClients; n > 0 {
			k.Served = k.Served[n:]
		}
		return k.Token, c.write(file, k), nil
	}
	if t, err = s.Get(ctx); err != nil {
		return Token{}, nil, err
	}
	if t.Expires.IsZero() {
		return t, nil, nil // its validity is unknown
	}
	c.prune(file)
	return t, c.write(file, kept{Token: t, Got: c.Now(), Served: []int{c.Client}}), nil
}

func (c *Cache) good(k kept) bool {
	early := min(margin, k.Expires.Sub(k.Got)/10)
	return k.Token.Token != "" && c.Now().Before(k.Expires.Add(-early))
}

// read answers false for what is not there, or not as it was written.
func (c *Cache) read(file string) (kept, bool) {
	var k kept
	b, err := os.ReadFile(file)
	if err != nil || len(b) > maxFile || json.Unmarshal(b, &k) != nil {
		return kept{}, false
	}
	return k, true
}

func (c *Cache) write(file string, k kept) error {
	b, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("keep token: %w", err)
	}
	return durable.Write(file, 0o600, b)
}

// prune removes tokens that have ended, and the oldest of too many.
func (c *Cache) prune(but string) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return
	}
	type old struct {
		file string
		got  time.Time
	}
	var all []old
	for _, e := range entries {
		file := filepath.Join(c.Dir, e.Name())
		if !strings.HasSuffix(file, ".json") || file == but {
			continue
		}
		k, ok := c.read(file)
		if !ok || !c.good(k) {
			remove(file)
			continue
		}
		all = append(all, old{file, k.Got})
	}
	slices.SortFunc(all, func(a, b old) int { return cmp.Compare(a.got.UnixNano(), b.got.UnixNano()) })
	for len(all) >= maxTokens {
		remove(all[0].file)
		all = all[1:]
	}
}

// remove removes a token and its lock; another process may have been first.
func remove(file string) {
	for _, f := range []string{file, file + ".lock"} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}
