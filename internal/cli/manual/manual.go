// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package manual reads the help of commands, and writes it as manual pages (man(7)) and as Markdown. So the help is the only text to keep.
//
// The help of a command is what package pflag and package cli print:
//
//	Usage: mortise NAME ...      or Usage: and indented lines
//
//	Sentences, in paragraphs.
//
//	Heading:                     optional
//	  -o, --output string   Text, which may go on in lines that are indented as far.
package manual

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Page is the help of one command.
type Page struct {
	Name, About string // such as "node doctor", and one line of text
	Synopsis    []string
	Text        []string // paragraphs
	Groups      []Group
}

// Group is flags under one heading; an empty one is none.
type Group struct {
	Heading string
	Flags   []Flag
}

// Flag is one flag. Short and Value are empty if it has none.
type Flag struct{ Short, Long, Value, Text string }

// Takes reports whether the flag needs a value as its next argument.
func (f Flag) Takes() bool { return f.Value != "" && !strings.Contains(f.Value, "[") }

var flagLine = regexp.MustCompile(`^ {2,6}(?:-(\w), )?--([\w.-]+)(\[=\S+\])?(?: (\S+))?(?:\s{2,}(.*))?$`)

// Parse reads the help of a command.
func Parse(name, about, help string) Page {
	p := Page{Name: name, About: about}
	var paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			p.Text = append(p.Text, strings.Join(paragraph, " "))
			paragraph = nil
		}
	}
	usage, flags := false, false
	heading := ""
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, " \n")
		rest, begins := strings.CutPrefix(line, "Usage:")
		match := flagLine.FindStringSubmatch(line)
		switch {
		case begins && len(p.Synopsis) == 0:
			usage = true
			if rest = strings.TrimSpace(rest); rest != "" {
				p.Synopsis = append(p.Synopsis, rest)
			}
		case line == "":
			end()
			usage, flags = false, false
		case match != nil:
			end()
			if len(p.Groups) == 0 || heading != "" {
				p.Groups = append(p.Groups, Group{Heading: strings.TrimSuffix(heading, ":")})
				heading = ""
			}
			flags = true
			g := &p.Groups[len(p.Groups)-1]
			g.Flags = append(g.Flags, Flag{Short: match[1], Long: match[2], Value: match[3] + match[4], Text: match[5]})
		case flags && strings.HasPrefix(line, "   "):
			f := &p.Groups[len(p.Groups)-1].Flags
			last := &(*f)[len(*f)-1]
			last.Text = strings.TrimSpace(last.Text + " " + strings.TrimSpace(line))
		case usage && strings.HasPrefix(line, "  "):
			p.Synopsis = append(p.Synopsis, strings.TrimSpace(line))
		case strings.HasSuffix(line, ":") && len(paragraph) == 0 && !strings.Contains(line, ". "):
			heading, flags = line, false
		default:
			if heading != "" { // it was the beginning of a paragraph
				paragraph, heading = append(paragraph, heading), ""
			}
			paragraph = append(paragraph, strings.TrimSpace(line))
		}
	}
	end()
	if len(p.Synopsis) == 0 {
		p.Synopsis = []string{"mortise " + name + " [flags]"}
	}
	return p
}

// File returns the name of the page's file in section 1 of the manual: mortise-node-doctor.1.
func (p Page) File() string { return p.title() + ".1" }

func (p Page) title() string {
	return strings.TrimSuffix("mortise-"+strings.ReplaceAll(p.Name, " ", "-"), "-")
}

// roff escapes text for man(7).
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// WriteRoff writes the page for man(1). Others are the pages to see also.
func (p Page) WriteRoff(w io.Writer, version string, others []Page) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"Mortise %s\" \"Mortise\"\n", strings.ToUpper(roff(p.title())), version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", roff(p.title()), roff(p.About))
	for _, line := range p.Synopsis {
		fmt.Fprintln(&b, roff(line))
	}
	b.WriteString(".fi\n")
	if len(p.Text) > 0 {
		b.WriteString(".SH DESCRIPTION\n")
	}
	for i, paragraph := range p.Text {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		fmt.Fprintln(&b, roff(paragraph))
	}
	for i, g := range p.Groups {
		if i == 0 {
			b.WriteString(".SH OPTIONS\n")
		}
		if g.Heading != "" && g.Heading != "Flags" {
			fmt.Fprintf(&b, ".SS %s\n", roff(g.Heading))
		}
		for _, f := range g.Flags {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(f.String()), roff(f.Text))
		}
	}
	for i, o := range others {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		separator := ","
		if i == len(others)-1 {
			separator = ""
		}
		fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(o.title()), separator)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String returns the flag as the help shows it.
func (f Flag) String() string {
	out := "--" + f.Long
	if f.Short != "" {
		out = "-" + f.Short + ", " + out
	}
	switch {
	case strings.HasPrefix(f.Value, "["):
		out += f.Value
	case f.Value != "":
		out += " " + f.Value
	}
	return out
}

// WriteMarkdown writes the page as a section of Markdown.
func (p Page) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "## mortise %s\n\n```\n%s\n```\n\n", p.Name, strings.Join(p.Synopsis, "\n"))
	for _, paragraph := range p.Text {
		fmt.Fprintf(&b, "%s\n\n", escape(paragraph))
	}
	for _, g := range p.Groups {
		if g.Heading != "" && g.Heading != "Flags" {
			fmt.Fprintf(&b, "### %s\n\n", g.Heading)
		}
		b.WriteString("| Flag | Meaning |\n|---|---|\n")
		for _, f := range g.Flags {
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(f.String(), "|", `\|`), escape(f.Text))
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// escape lets a text be what it is in Markdown.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`).Replace(text)
}
