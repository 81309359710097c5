// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package zpages serves pages about a component: /statusz, its versions and uptime; /flagz, its flags; and /configz, its
// effective configuration.
//
// The first two are text for people, or, for clients that request the kind by name (Accept:
// application/json;g=config.k8s.io;v=v1beta1;as=Flagz), a Kubernetes object in JSON or YAML. v1alpha1 is served too, with a
// warning. Nothing else is acceptable.
package zpages

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

const (
	group = "config.k8s.io"
	text  = "text/plain"
	// upstream's words
	heading = "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"
)

// Component has the data of the pages. The functions are called on each request.
type Component struct {
	Name                                       string
	Started                                    time.Time
	GoVersion, BinaryVersion, EmulationVersion string
	Paths                                      func() []string
	Flags                                      func() map[string]string
	Config                                     func() map[string]any
	Now                                        func() time.Time
}

// statusz and flagz are the wire forms of both kinds in both versions.
type statusz struct {
	metav1.TypeMeta   `json:""`
	metav1.ObjectMeta `json:"metadata"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion,omitempty"`
	Paths             []string    `json:"paths"`
}

type flagz struct {
	metav1.TypeMeta   `json:""`
	metav1.ObjectMeta `json:"metadata"`
	Flags             map[string]string `json:"flags,omitempty"`
}

// Statusz answers /statusz.
func (c *Component) Statusz(w http.ResponseWriter, r *http.Request) {
	up := int64(c.Now().Sub(c.Started).Seconds())
	s := statusz{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name}, StartTime: metav1.NewTime(c.Started.UTC()), UptimeSeconds: up,
		GoVersion: c.GoVersion, BinaryVersion: c.BinaryVersion, EmulationVersion: c.EmulationVersion, Paths: roots(c.Paths()),
	}
	answer(w, r, "Statusz", &s, &s.TypeMeta, func() string {
		return fmt.Sprintf(heading, c.Name, "statusz") + fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			c.Started.UTC().Format(time.UnixDate), up/3600, up/60%60, up%60, c.GoVersion, c.BinaryVersion, c.EmulationVersion, strings.Join(s.Paths, " "))
	})
}

// Flagz answers /flagz.
func (c *Component) Flagz(w http.ResponseWriter, r *http.Request) {
	f := flagz{ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Flags: c.Flags()}
	answer(w, r, "Flagz", &f, &f.TypeMeta, func() string {
		out := fmt.Sprintf(heading, c.Name, "flagz")
		for _, k := range slices.Sorted(maps.Keys(f.Flags)) {
			out += k + "=" + f.Flags[k] + "\n"
		}
		return out
	})
}

// Configz answers /configz: a JSON object of configurations by component.
func (c *Component) Configz(w http.ResponseWriter, r *http.Request) {
	b, err := json.Marshal(c.Config())
	if err != nil {
		status.Write(w, r, fmt.Errorf("encode configuration: %w", err))
		return
	}
	send(w, "application/json", b)
}

// roots are the paths' first elements that are pages of their own, each once, sorted.
func roots(paths []string) []string {
	pages := []string{"flagz", "healthz", "livez", "metrics", "readyz", "statusz", "version"}
	var found []string
	for _, p := range paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		if slices.Contains(pages, first) && !slices.Contains(found, "/"+first) {
			found = append(found, "/"+first)
		}
	}
	slices.Sort(found)
	return found
}

// answer gives an object in the form that the client asks for; kind names it.
func answer(w http.ResponseWriter, r *http.Request, kind string, obj any, meta *metav1.TypeMeta, plain func() string) {
	media, version, ok := form(r.Header.Get("Accept"), kind)
	switch {
	case !ok:
		status.Write(w, r, status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: application/json, application/yaml, text/plain"))
		return
	case media == text:
		send(w, text+"; charset=utf-8", []byte(plain()))
		return
	}
	if version != "v1beta1" {
		w.Header().Set("Warning", `299 - "This version of the `+strings.ToLower(kind)+` endpoint is deprecated. Please use a newer version."`)
	}
	meta.Kind, meta.APIVersion = kind, group+"/"+version
	var b []byte
	var err error
	switch {
	case media == negotiate.YAML:
		b, err = yaml.Marshal(obj)
	case negotiate.Pretty(r):
		b, err = json.MarshalIndent(obj, "", "  ")
	default:
		b, err = json.Marshal(obj)
		b = append(b, '\n')
	}
	if err != nil {
		status.Write(w, r, fmt.Errorf("encode %s: %w", kind, err))
		return
	}
	send(w, media+";g="+group+";v="+version+";as="+kind, b)
}

// form picks the first clause of an Accept header that can be met: text as it is, JSON and YAML for the kind by name.
func form(accept, kind string) (media, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return text, "", true
	}
	for _, c := range negotiate.Parse(accept) {
		g, v, as := c.Params["g"], c.Params["v"], c.Params["as"]
		named := g != "" || v != "" || as != ""
		switch c.Type + "/" + c.SubType {
		case text, "text/*", "*/*":
			if !named {
				return text, "", true
			}
		}
		if g != group || as != kind || v != "v1beta1" && v != "v1alpha1" {
			continue
		}
		switch c.Type + "/" + c.SubType {
		case negotiate.JSON, "application/*", "*/*":
			return negotiate.JSON, v, true
		case negotiate.YAML:
			return negotiate.YAML, v, true
		}
	}
	return "", "", false
}

func send(w http.ResponseWriter, contentType string, b []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a client that went away needs no answer
}
