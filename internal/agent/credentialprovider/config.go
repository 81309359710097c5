// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credentialprovider

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// entry is an entry of a docker configuration.
type entry struct {
	Username, Password, Email string
}

// UnmarshalJSON implements json.Unmarshaler. The field auth, the base64 of USER:PASSWORD, takes precedence over user and password.
func (e *entry) UnmarshalJSON(text []byte) error {
	var written struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Email    string `json:"email"`
		Auth     string `json:"auth"`
	}
	if err := json.Unmarshal(text, &written); err != nil {
		return err
	}
	*e = entry{written.Username, written.Password, written.Email}
	if written.Auth == "" {
		return nil
	}
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(written.Auth), "=") {
		encoding = base64.StdEncoding
	}
	plain, err := encoding.DecodeString(written.Auth)
	if err != nil {
		return err
	}
	user, password, found := strings.Cut(string(plain), ":")
	if !found {
		return errors.New("unable to parse auth field, must be formatted as base64(username:password)") // upstream's words
	}
	e.Username, e.Password = user, password
	return nil
}

// read returns the entries of a secret's docker configuration, in the current or the legacy format.
func read(secret *corev1.Secret) (map[string]entry, error) {
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths   map[string]entry  `json:"auths"`
			Headers map[string]string `json:"HttpHeaders"`
		}
		if text := secret.Data[corev1.DockerConfigJsonKey]; len(text) > 0 {
			if err := json.Unmarshal(text, &file); err != nil {
				return nil, err
			}
		}
		return file.Auths, nil
	case corev1.SecretTypeDockercfg:
		var entries map[string]entry
		if text := secret.Data[corev1.DockerConfigKey]; len(text) > 0 {
			if err := json.Unmarshal(text, &entries); err != nil {
				return nil, err
			}
		}
		return entries, nil
	}
	return nil, nil
}
