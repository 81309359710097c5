// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kindstest has objects for tests of kinds.
package kindstest

import (
	"math/rand"
	"sync"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// codecs encode what raw extensions are filled with.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	types := runtime.NewScheme()
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(types)
})

// Fill gives random values to all fields of an object, which must be empty. The same source gives the same values.
func Fill(obj runtime.Object, source rand.Source) {
	fuzzer.FuzzerFor(metafuzzer.Funcs, source, codecs()).Fill(obj)
}
