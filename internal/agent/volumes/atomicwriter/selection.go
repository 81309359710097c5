// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package atomicwriter

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
)

// Selection selects the data of a ConfigMap or Secret for a volume.
type Selection struct {
	Name     string // of the object
	Items    []corev1.KeyToPath
	Mode     *int32 // of files whose items have no mode
	Optional *bool  // the object and the items may be missing
}

// MayMiss reports whether the object and the items may be missing.
func (s Selection) MayMiss() bool { return s.Optional != nil && *s.Optional }

// Files returns the files of all keys or, with items, those of the items' keys under the items' paths. The argument what names the kind of
// key in errors.
func (s Selection) Files(what string, data map[string][]byte) (map[string]File, error) {
	out := map[string]File{}
	if len(s.Items) == 0 {
		for key, value := range data {
			out[key] = File{Data: value, Mode: Mode(nil, s.Mode)}
		}
		return out, nil
	}
	for _, item := range s.Items {
		value, ok := data[item.Key]
		if !ok {
			if s.MayMiss() {
				continue
			}
			return nil, fmt.Errorf("references non-existent %s key: %s", what, item.Key)
		}
		out[path.Clean(item.Path)] = File{Data: value, Mode: Mode(item.Mode, s.Mode)}
	}
	return out, nil
}

// Mode returns the mode of a file, from its item or its volume.
func Mode(item, volume *int32) int32 {
	switch {
	case item != nil:
		return *item
	case volume != nil:
		return *volume
	}
	return 0o644
}
