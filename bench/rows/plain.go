// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// plainChild is the argument that makes the program a client that posts the same again and again.
const plainChild = "plain-client"

// plain configures the client, on its standard input.
type plain struct {
	URL    string
	Body   []byte
	Length time.Duration
}

// posted is how long the middle one of such posts took that another process of this machine made: what is not Mortise's of the time that a
// webhook takes.
func posted(ctx context.Context, p plain) (time.Duration, error) {
	told, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	c, err := ownProgram(ctx, plainChild)
	if err != nil {
		return 0, err
	}
	c.Stdin = bytes.NewReader(told)
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("post from another process: %w", err)
	}
	var took time.Duration
	_, err = fmt.Sscan(string(out), (*int64)(&took))
	return took, err
}

// bePlain is that process.
func bePlain(in io.Reader, out io.Writer) error {
	var p plain
	if err := json.NewDecoder(in).Decode(&p); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}}
	var all []time.Duration
	for begun := time.Now(); time.Since(begun) < p.Length; {
		from := time.Now()
		w, err := client.Post(p.URL, "application/json", bytes.NewReader(p.Body))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, w.Body)
		if err := errors.Join(err, w.Body.Close()); err != nil {
			return err
		}
		all = append(all, time.Since(from))
	}
	if len(all) == 0 {
		return errors.New("nothing was posted")
	}
	slices.Sort(all)
	_, err := fmt.Fprintln(out, int64(all[len(all)/2]))
	return err
}
