// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/program"
)

// usualBinDirs are the directories in which the node looks for CNI plug-ins.
func usualBinDirs() []string { return []string{"/opt/cni/bin", "/usr/lib/cni"} }

// network is the pod network of the runtime: the first configuration in its directory.
type network struct {
	file    string
	name    string
	version string // of CNI
	plugins []plugin
	binDirs []string
}

// plugin is one plug-in of a network's chain.
type plugin struct {
	kind   string // the name of its program
	fields map[string]any
}

// verb is one of CNI's commands.
type verb struct {
	command                  string
	container, netns, ifname string
	args                     string
	fields                   map[string]any // added to the plug-in's configuration
	capabilities             map[string]any // of the attachment
}

// parse parses a configuration: a list of plug-ins, or a single one.
func parse(text []byte) (*network, error) {
	var one map[string]any
	if err := json.Unmarshal(text, &one); err != nil {
		return nil, fmt.Errorf("decode CNI configuration: %w", err)
	}
	n := &network{}
	n.name, _ = one["name"].(string)
	n.version, _ = one["cniVersion"].(string)
	list, isList := one["plugins"].([]any)
	if !isList {
		list = []any{one}
	}
	for _, p := range list {
		fields, ok := p.(map[string]any)
		kind, _ := fields["type"].(string)
		if !ok || kind == "" || strings.Contains(kind, "/") {
			return nil, errors.New("decode CNI configuration: a plug-in without a type")
		}
		n.plugins = append(n.plugins, plugin{kind, fields})
	}
	if n.name == "" || len(n.plugins) == 0 {
		return nil, errors.New("decode CNI configuration: it has no name, or no plug-ins")
	}
	return n, nil
}

// atLeast reports whether a version of CNI is at least another.
func atLeast(version, other string) bool {
	number := func(s string) (out []int) {
		for part := range strings.SplitSeq(s, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return nil
			}
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(number(version), number(other)) >= 0
}

// configured returns the configuration in a directory that a runtime uses: the first by name.
func configured(dir string) (*network, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read CNI directory: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read CNI configuration: %w", err)
		}
		n, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		n.file = path
		return n, nil
	}
	return nil, fmt.Errorf("no CNI configuration in %s", dir)
}

// program returns the path of a plug-in's program; empty: it is missing.
func (n *network) program(kind string) string {
	for _, dir := range n.binDirs {
		path := filepath.Join(dir, kind)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// call calls one plug-in.
func (n *network) call(ctx context.Context, p plugin, v verb) ([]byte, error) {
	path := n.program(p.kind)
	if path == "" {
		return nil, fmt.Errorf("CNI plug-in %q is not in %s", p.kind, strings.Join(n.binDirs, ", "))
	}
	text, err := json.Marshal(n.input(p, v))
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	out, err := program.Command{Name: path, Input: string(text),
		Env: append(os.Environ(), "CNI_COMMAND="+v.command, "CNI_CONTAINERID="+v.container,
			"CNI_NETNS="+v.netns, "CNI_IFNAME="+v.ifname, "CNI_ARGS="+v.args, "CNI_PATH="+strings.Join(n.binDirs, ":"))}.Run(ctx)
	if failed := (*program.Failure)(nil); errors.As(err, &failed) {
		var said struct{ Msg, Details string }
		if json.Unmarshal(failed.Output, &said) == nil && said.Msg != "" {
			err = errors.New(strings.TrimSuffix(said.Msg+": "+said.Details, ": "))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("CNI plug-in %s, %s: %w", p.kind, v.command, err)
	}
	return out, nil
}

// input returns the input of a plug-in: its part of the configuration with the network's name and version, and the additions of the verb.
func (n *network) input(p plugin, v verb) map[string]any {
	in := map[string]any{}
	for k, field := range p.fields {
		in[k] = field
	}
	in["name"], in["cniVersion"] = n.name, n.version
	for k, field := range v.fields {
		in[k] = field
	}
	can, _ := p.fields["capabilities"].(map[string]any)
	given := map[string]any{}
	for k, value := range v.capabilities {
		if able, _ := can[k].(bool); able {
			given[k] = value
		}
	}
	if len(given) > 0 {
		in["runtimeConfig"] = given
	}
	return in
}

// understands reports whether the network's version of CNI has STATUS and GC.
func (n *network) understands() bool { return atLeast(n.version, "1.1.0") }

func checkNetwork(ctx context.Context, e *examination) []Finding {
	dir, bins := cni.DefaultDir, usualBinDirs()
	if e.runtime != nil {
		if e.runtime.confDir != "" {
			dir = e.runtime.confDir
		}
		if len(e.runtime.binDirs) > 0 {
			bins = e.runtime.binDirs
		}
	}
	n, err := configured(dir)
	if err != nil {
		return []Finding{{State: Wrong, What: err.Error(),
			Do: "install a network plug-in, or start the node, which writes a configuration if there is none"}}
	}
	n.binDirs = bins
	e.network = n
	return append([]Finding{{State: OK, What: fmt.Sprintf("network %s, CNI %s, by %s", n.name, n.version, n.file)}}, n.ask(ctx)...)
}

// ask queries the versions that each plug-in supports and, if CNI has STATUS, whether it can add pods.
func (n *network) ask(ctx context.Context) []Finding {
	var out []Finding
	for _, p := range n.plugins {
		said, err := n.call(ctx, p, verb{command: "VERSION"})
		if err != nil {
			out = append(out, Finding{State: Wrong, What: err.Error(), Do: "install the plug-in (containernetworking-plugins has the usual ones)"})
			continue
		}
		var versions struct {
			Supported []string `json:"supportedVersions"`
		}
		if err := json.Unmarshal(said, &versions); err != nil || !slices.Contains(versions.Supported, n.version) {
			out = append(out, Finding{
				State: Wrong, What: fmt.Sprintf("CNI plug-in %s does not speak CNI %s, but %s", p.kind, n.version,
					strings.Join(versions.Supported, ", ")),
				Do: "install a newer plug-in, or write an older cniVersion in " + n.file,
			})
			continue
		}
		if !n.understands() {
			out = append(out, Finding{State: OK, What: fmt.Sprintf("plug-in %s speaks CNI %s, which has no STATUS", p.kind, n.version)})
			continue
		}
		if _, err := n.call(ctx, p, verb{command: "STATUS"}); err != nil {
			out = append(out, Finding{State: Wrong, What: err.Error(), Do: "fix the cause: the plug-in cannot add pods"})
			continue
		}
		out = append(out, Finding{State: OK, What: fmt.Sprintf("plug-in %s can add pods", p.kind)})
	}
	return out
}
