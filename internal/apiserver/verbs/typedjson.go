// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/mortise-dev/mortise/internal/apiserver/merge"
)

// The JSON of usual API objects is decoded into their Go types in less than half of the time that sigs.k8s.io/json takes: the text is
// read once, by functions that are made once for each type.
//
// A text is decoded whole or not at all. What is an error or a matter of strictness is declined, such as unknown and repeated fields, and
// what is rare: numbers with fractions, fields of any type, deep nesting, characters that are no UTF-8. The caller then uses
// sigs.k8s.io/json, whose results and errors are upstream's. A fuzzer compares the two.

// typedDepth is how deep values may be nested.
const typedDepth = 64

// typedDecoders are those of the types that were decoded.
var typedDecoders sync.Map // of reflect.Type to typedDecode

// decodeTyped decodes a JSON object into an empty struct that into points to, and reports whether it did. If not, into is of no use any
// more. It is safe for concurrent use.
func decodeTyped(text []byte, into any) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || v.Type().Implements(unmarshalerType) {
		return false
	}
	known, ok := typedDecoders.Load(v.Type())
	if !ok {
		known, _ = typedDecoders.LoadOrStore(v.Type(), (&typedMaker{made: map[reflect.Type]*typedDecode{}}).of(v.Type().Elem()))
	}
	r := &typedReader{text: text}
	r.space()
	if r.next() != '{' || !known.(typedDecode)(r, v.Elem()) {
		return false
	}
	r.space()
	return r.at == len(text)
}

// typedReader is a text that is read.
type typedReader struct {
	text  []byte
	at    int
	depth int
}

// next returns the next byte; 0: there is none.
func (r *typedReader) next() byte {
	if r.at < len(r.text) {
		return r.text[r.at]
	}
	return 0
}

func (r *typedReader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\n', '\t', '\r':
			r.at++
		default:
			return
		}
	}
}

// take reads a byte.
func (r *typedReader) take(c byte) bool {
	if r.next() != c {
		return false
	}
	r.at++
	return true
}

// word reads a literal.
func (r *typedReader) word(w string) bool {
	if end := r.at + len(w); end <= len(r.text) && string(r.text[r.at:end]) == w {
		r.at = end
		return true
	}
	return false
}

// raw reads a string without its quotes. Plain: it has no escapes, and is its own value.
func (r *typedReader) raw() (s []byte, plain, ok bool) {
	if !r.take('"') {
		return nil, false, false
	}
	from := r.at
	plain = true
	ascii := true
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			s = r.text[from:r.at]
			r.at++
			return s, plain, ascii || utf8.Valid(s)
		case c == '\\':
			plain = false
			if r.at++; r.at == len(r.text) {
				return nil, false, false
			}
		case c < ' ':
			return nil, false, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false, false
}

// string reads a string.
func (r *typedReader) string() (string, bool) {
	from := r.at
	s, plain, ok := r.raw()
	if !ok || plain {
		return string(s), ok
	}
	var out string
	err := json.Unmarshal(r.text[from:r.at], &out)
	return out, err == nil
}

// integer reads the text of a whole number.
func (r *typedReader) integer() (string, bool) {
	from := r.at
	r.take('-')
	digits := r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
		r.at++
	}
	n := r.at - digits
	if n == 0 || n > 1 && r.text[digits] == '0' {
		return "", false
	}
	switch r.next() {
	case '.', 'e', 'E':
		return "", false
	}
	b := r.text[from:r.at]
	return unsafe.String(&b[0], len(b)), true // it is parsed at once
}

// value skips a value whose text a type decodes itself, and returns the text.
func (r *typedReader) value() ([]byte, bool) {
	from := r.at
	switch r.next() {
	case '"':
		_, _, ok := r.raw()
		return r.text[from:r.at], ok && (json.Valid(r.text[from:r.at]))
	case '{', '[':
		if !r.skip() {
			return nil, false
		}
		return r.text[from:r.at], json.Valid(r.text[from:r.at])
	case 't':
		return r.text[from:r.at], false
	}
	_, ok := r.integer()
	return r.text[from:r.at], ok
}

// skip goes to the end of an object or array; its text may not be JSON.
func (r *typedReader) skip() bool {
	open := 0
	for ; r.at < len(r.text); r.at++ {
		switch r.text[r.at] {
		case '"':
			if _, _, ok := r.raw(); !ok {
				return false
			}
			r.at--
		case '{', '[':
			open++
		case '}', ']':
			if open--; open == 0 {
				r.at++
				return true
			}
		}
	}
	return false
}

// members reads an object, and calls member at the value of each. The name is valid until the call returns.
func (r *typedReader) members(member func(name []byte) bool) bool {
	if !r.take('{') {
		return false
	}
	if r.depth++; r.depth > typedDepth {
		return false
	}
	r.space()
	if r.take('}') {
		r.depth--
		return true
	}
	for {
		name, plain, ok := r.raw()
		if !ok || !plain {
			return false
		}
		r.space()
		if !r.take(':') {
			return false
		}
		r.space()
		if !member(name) {
			return false
		}
		r.space()
		if r.take('}') {
			r.depth--
			return true
		}
		if !r.take(',') {
			return false
		}
		r.space()
	}
}

// typedDecode reads a value.
type typedDecode func(r *typedReader, v reflect.Value) bool

func declined(*typedReader, reflect.Value) bool { return false }

// typedMaker makes the functions of types that may contain themselves.
type typedMaker struct{ made map[reflect.Type]*typedDecode }

var (
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (m *typedMaker) of(t reflect.Type) typedDecode {
	if known := m.made[t]; known != nil {
		return func(r *typedReader, v reflect.Value) bool { return (*known)(r, v) } // it may still be nil
	}
	to := new(typedDecode)
	m.made[t] = to
	*to = m.make(t)
	return *to
}

func (m *typedMaker) make(t reflect.Type) typedDecode {
	if reflect.PointerTo(t).Implements(unmarshalerType) && t.Kind() != reflect.Pointer {
		return func(r *typedReader, v reflect.Value) bool {
			text, ok := r.value()
			return ok && v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text) == nil
		}
	}
	if reflect.PointerTo(t).Implements(textUnmarshalerType) {
		return declined
	}
	switch kind := t.Kind(); {
	case kind == reflect.String:
		return func(r *typedReader, v reflect.Value) bool {
			s, ok := r.string()
			v.SetString(s)
			return ok
		}
	case kind == reflect.Bool:
		return func(r *typedReader, v reflect.Value) bool {
			is := r.word("true")
			v.SetBool(is)
			return is || r.word("false")
		}
	case kind >= reflect.Int && kind <= reflect.Int64:
		return func(r *typedReader, v reflect.Value) bool {
			s, ok := r.integer()
			n, err := strconv.ParseInt(s, 10, v.Type().Bits())
			v.SetInt(n)
			return ok && err == nil
		}
	case kind == reflect.Pointer:
		return m.pointer(t)
	case kind == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return typedOctets
	case kind == reflect.Slice:
		return m.slice(t)
	case kind == reflect.Map && t.Key().Kind() == reflect.String && !reflect.PointerTo(t.Key()).Implements(textUnmarshalerType):
		return m.dictionary(t)
	case kind == reflect.Struct:
		return m.structure(t)
	}
	return declined
}

func (m *typedMaker) pointer(t reflect.Type) typedDecode {
	to := m.of(t.Elem())
	return func(r *typedReader, v reflect.Value) bool {
		if r.word("null") {
			return true
		}
		made := reflect.New(t.Elem())
		if !to(r, made.Elem()) {
			return false
		}
		v.Set(made)
		return true
	}
}

func typedOctets(r *typedReader, v reflect.Value) bool {
	if r.word("null") {
		return true
	}
	s, plain, ok := r.raw()
	if !ok || !plain {
		return false
	}
	b, err := base64.StdEncoding.AppendDecode(make([]byte, 0, base64.StdEncoding.DecodedLen(len(s))), s)
	v.SetBytes(b)
	return err == nil
}

func (m *typedMaker) slice(t reflect.Type) typedDecode {
	each := m.of(t.Elem())
	return func(r *typedReader, v reflect.Value) bool {
		if r.word("null") {
			return true
		}
		if !r.take('[') {
			return false
		}
		if r.depth++; r.depth > typedDepth {
			return false
		}
		r.space()
		if r.take(']') {
			r.depth--
			v.Set(reflect.MakeSlice(t, 0, 0))
			return true
		}
		for n := 0; ; n++ {
			if n == v.Cap() {
				v.Grow(1)
			}
			v.SetLen(n + 1)
			if r.next() == 'n' || !each(r, v.Index(n)) {
				return false
			}
			r.space()
			if r.take(']') {
				r.depth--
				return true
			}
			if !r.take(',') {
				return false
			}
			r.space()
		}
	}
}

func (m *typedMaker) dictionary(t reflect.Type) typedDecode {
	each := m.of(t.Elem())
	texts := t == reflect.TypeFor[map[string]string]()
	return func(r *typedReader, v reflect.Value) bool {
		if r.word("null") {
			return true
		}
		if texts {
			made := map[string]string{}
			v.Set(reflect.ValueOf(made))
			return r.members(func(name []byte) bool {
				s, ok := r.string()
				if _, twice := made[string(name)]; twice {
					return false
				}
				made[string(name)] = s
				return ok
			})
		}
		made := reflect.MakeMap(t)
		v.Set(made)
		return r.members(func(name []byte) bool {
			if r.next() == 'n' {
				return false
			}
			e := reflect.New(t.Elem()).Elem()
			if !each(r, e) {
				return false
			}
			key := reflect.ValueOf(string(name)).Convert(t.Key())
			if made.MapIndex(key).IsValid() {
				return false
			}
			made.SetMapIndex(key, e)
			return true
		})
	}
}

// typedField is a field of a struct, maybe of one that it embeds.
type typedField struct {
	index  []int
	decode typedDecode
	number int
}

// structure decodes a struct. Special fields are declined, and those beyond as many as a struct of the API has.
func (m *typedMaker) structure(t reflect.Type) typedDecode {
	const most = 128
	all := map[string]typedField{}
	for name, f := range merge.Fields(t) {
		to := typedField{f.Index, m.of(f.Type), len(all) % most}
		if f.Special || len(all) >= most {
			to.decode = declined
		}
		all[name] = to
	}
	return func(r *typedReader, v reflect.Value) bool {
		var seen [most / 64]uint64
		return r.members(func(name []byte) bool {
			f, ok := all[string(name)]
			if !ok || seen[f.number/64]&(1<<(f.number%64)) != 0 {
				return false
			}
			seen[f.number/64] |= 1 << (f.number % 64)
			to := v
			for _, i := range f.index {
				to = to.Field(i)
			}
			if r.next() == 'n' { // null, of which a value that decodes itself may make something
				switch to.Kind() {
				case reflect.Pointer, reflect.Slice, reflect.Map:
				default:
					return false
				}
			}
			return f.decode(r, to)
		})
	}
}
