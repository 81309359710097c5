// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// document is a bill of materials in SPDX 2.3, as JSON.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []material     `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// material is a package in SPDX's words: the program, or a module in it.
type material struct {
	SPDXID           string      `json:"SPDXID"`
	Name             string      `json:"name"`
	VersionInfo      string      `json:"versionInfo"`
	DownloadLocation string      `json:"downloadLocation"`
	FilesAnalyzed    bool        `json:"filesAnalyzed"`
	LicenseConcluded string      `json:"licenseConcluded"`
	LicenseDeclared  string      `json:"licenseDeclared"`
	CopyrightText    string      `json:"copyrightText"`
	Purpose          string      `json:"primaryPackagePurpose"`
	Checksums        []checksum  `json:"checksums,omitempty"`
	ExternalRefs     []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

var noIdentifier = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// bill writes the bill of materials of a platform's binary: the Go modules that the compiler has recorded in it.
func (r *release) bill(p platform) error {
	info, err := buildinfo.ReadFile(r.binary(p))
	if err != nil {
		return fmt.Errorf("read modules of the binary: %w", err)
	}
	data, err := os.ReadFile(r.binary(p))
	if err != nil {
		return fmt.Errorf("read binary: %w", err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	const own = "SPDXRef-mortise"
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: filepath.Base(r.named(p.String())),
		// Where a document's creator has no site for it, section 6.5 of the specification gives it this place.
		DocumentNamespace: "https://spdx.org/spdxdocs/" + filepath.Base(r.named(p.String())) + "-" + sum,
		CreationInfo: creation{
			Created: r.time.Format(time.RFC3339), Creators: []string{"Organization: The Mortise Authors", "Tool: mortise-release"},
		},
		Packages: []material{{
			SPDXID: own, Name: "mortise", VersionInfo: r.version, DownloadLocation: noAssertion, LicenseConcluded: "Apache-2.0",
			LicenseDeclared: "Apache-2.0", CopyrightText: "The Mortise Authors", Purpose: "APPLICATION", Checksums: []checksum{{"SHA256", sum}},
		}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", own}},
	}
	add := func(path, version, download string) {
		id := "SPDXRef-" + noIdentifier.ReplaceAllString(path+"-"+version, "-")
		d.Packages = append(d.Packages, material{
			SPDXID: id, Name: path, VersionInfo: version, DownloadLocation: download, LicenseConcluded: noAssertion, LicenseDeclared: noAssertion,
			CopyrightText: noAssertion, Purpose: "LIBRARY",
			ExternalRefs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
		})
		d.Relationships = append(d.Relationships, relationship{own, "DEPENDS_ON", id})
	}
	add("stdlib", info.GoVersion, "https://go.dev/dl/"+info.GoVersion+".src.tar.gz")
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(m.Path, m.Version, "https://proxy.golang.org/"+m.Path+"/@v/"+m.Version+".zip")
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("encode bill of materials: %w", err)
	}
	if err := os.WriteFile(r.named(p.String()+".spdx.json"), append(text, '\n'), 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write bill of materials: %w", err)
	}
	return nil
}
