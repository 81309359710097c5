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
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"
)

const (
	group    = "config.k8s.io"
	text     = "text/plain"
	jsonType = "application/json"
	yamlType = "application/yaml"
	// upstream's words
	heading = "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees " +
		"and is for debugging purposes only.\n"
)

// Component has the data of the pages. The functions are called on each request.
type Component struct {
	Name                                       string
	Started                                    time.Time
	GoVersion, BinaryVersion, EmulationVersion string
	Paths                                      func() []string // of which /statusz lists the first elements
	Flags                                      func() map[string]string
	Config                                     func() map[string]any
	Now                                        func() time.Time
	// Pretty reports whether JSON is indented; nil: never.
	Pretty func(*http.Request) bool
	// Fail answers with an error; nil: as a Status in JSON.
	Fail func(http.ResponseWriter, *http.Request, error)
}

// New makes what a component of these versions tells, but for its start, its paths and its settings.
func New(name string, v version.Info) *Component {
	binary, _, _ := strings.Cut(strings.TrimPrefix(v.GitVersion, "v"), "+")
	return &Component{Name: name, GoVersion: v.GoVersion, BinaryVersion: binary, EmulationVersion: v.EmulationMajor + "." + v.EmulationMinor}
}

// Flags are flags and their values. Those that upstream's annotation marks as classified are not shown.
func Flags(f *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) {
		values[flag.Name] = flag.Value.String()
		if len(flag.Annotations["classified"]) > 0 {
			values[flag.Name] = "CLASSIFIED" // upstream's word
		}
	})
	return values
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
	c.answer(w, r, "Statusz", &s, &s.TypeMeta, func() string {
		const form = "\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n"
		return fmt.Sprintf(heading, c.Name, "statusz") + fmt.Sprintf(form,
			c.Started.UTC().Format(time.UnixDate), up/3600, up/60%60, up%60, c.GoVersion, c.BinaryVersion, c.EmulationVersion,
			strings.Join(s.Paths, " "))
	})
}

// Flagz answers /flagz.
func (c *Component) Flagz(w http.ResponseWriter, r *http.Request) {
	f := flagz{ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Flags: c.Flags()}
	c.answer(w, r, "Flagz", &f, &f.TypeMeta, func() string {
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
		c.fail(w, r, fmt.Errorf("encode configuration: %w", err))
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	send(w, jsonType, b)
}

// roots are the first elements of paths, but for those of APIs, each once, sorted.
func roots(paths []string) []string {
	var found []string
	for _, p := range paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		if first != "" && !slices.Contains([]string{"apis", "api", "openid", "openapi", ".well-known"}, first) {
			found = append(found, "/"+first)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// fail answers with an error.
func (c *Component) fail(w http.ResponseWriter, r *http.Request, err error) {
	if c.Fail != nil {
		c.Fail(w, r, err)
		return
	}
	said := apierrors.NewInternalError(err).ErrStatus
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		said = known.Status()
	}
	said.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	b, err := json.Marshal(&said)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(int(said.Code))
	_, _ = w.Write(append(b, '\n')) // a client that went away needs no answer
}

// answer gives an object in the form that the client asks for; kind names it.
func (c *Component) answer(w http.ResponseWriter, r *http.Request, kind string, obj any, meta *metav1.TypeMeta, plain func() string) {
	media, version, ok := form(r.Header.Get("Accept"), kind)
	switch {
	case !ok:
		c.fail(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "only the following media types are accepted: application/json, application/yaml, text/plain",
		}})
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
	case media == yamlType:
		b, err = yaml.Marshal(obj)
	case c.Pretty != nil && c.Pretty(r):
		b, err = json.MarshalIndent(obj, "", "  ")
	default:
		b, err = json.Marshal(obj)
		b = append(b, '\n')
	}
	if err != nil {
		c.fail(w, r, fmt.Errorf("encode %s: %w", kind, err))
		return
	}
	send(w, media+";g="+group+";v="+version+";as="+kind, b)
}

// form picks the first clause of an Accept header that can be met: text as it is, JSON and YAML for the kind by name.
func form(accept, kind string) (media, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return text, "", true
	}
	for _, c := range goautoneg.ParseAccept(accept) {
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
		case jsonType, "application/*", "*/*":
			return jsonType, v, true
		case yamlType:
			return yamlType, v, true
		}
	}
	return "", "", false
}

func send(w http.ResponseWriter, contentType string, b []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a client that went away needs no answer
}
