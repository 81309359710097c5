// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/store"
)

// MaxUnreadable is how many of the objects that cannot be read the error of a list names, as kube-apiserver does.
const MaxUnreadable = 100

// corrupt describes, in upstream's words, a stored value that cannot be used.
func corrupt(e *store.UnreadableError, key string) string {
	return fmt.Sprintf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, undecodable(e))
}

// undecodable is why, without the key.
func undecodable(e *store.UnreadableError) string {
	what, revision := "object not decodable", e.Revision
	if e.Sealed {
		what, revision = "data from the storage is not transformable", 0
	}
	return fmt.Sprintf("%s revision=%d: %v", what, revision, e.Err)
}

// unreadable returns the status of a request for one object that cannot be read.
func unreadable(e *store.UnreadableError) error {
	return apierrors.NewInternalError(errors.New(corrupt(e, strings.TrimPrefix(e.Key, "/registry"))))
}

// Undecodable returns the error of an update of an object that cannot be decoded: upstream leaves out the key.
func Undecodable(err error) error {
	if e := (*store.UnreadableError)(nil); errors.As(err, &e) && !e.Sealed {
		return errors.New(undecodable(e))
	}
	return err
}

// UnreadableList returns the error of a list among whose objects some cannot be read: it names the first [MaxUnreadable] by their keys. The
// slice is not empty.
func UnreadableList(r schema.GroupResource, all []*store.UnreadableError) error {
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", r.String(), corrupt(all[0], all[0].Key))
	causes := make([]metav1.StatusCause, 0, len(all)+1)
	for _, e := range all {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: corrupt(e, e.Key), Field: e.Key})
	}
	if len(all) > 1 {
		message = fmt.Sprintf("%s (and %d more)", message, len(all)-1)
	}
	if len(all) >= MaxUnreadable {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
	}
	return storeRead(message, &metav1.StatusDetails{Group: r.Group, Kind: r.Resource, Name: "list", Causes: causes})
}

// UnreadableDeleted returns the error that ends a watch when the last state of a deleted object cannot be read.
func UnreadableDeleted(e *store.UnreadableError) error {
	return storeRead("saw a DELETED event, but object data is corrupt - "+undecodable(e), nil)
}

func storeRead(message string, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: details, Message: message,
	}}
}
