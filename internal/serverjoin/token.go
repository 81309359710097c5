// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverjoin

import (
	"fmt"
	"strings"

	"github.com/mortise-dev/mortise/internal/bootstraptoken"
)

// Group is the group of the users of the tokens with which servers join.
const Group = "system:bootstrappers:mortise:servers"

// Token is a bootstrap token with the hash of the cluster's CA, so that it is never sent to another server.
type Token struct {
	Hash string // of the CA's public key: sha256:HEX
	bootstraptoken.Token
}

// between separates the hash from the bootstrap token, as in tokens of k3s.
const between = "::"

// Parse reads a token: sha256:HEX::ID.SECRET.
func Parse(text string) (t Token, err error) {
	hash, secret, ok := strings.Cut(text, between)
	if !ok {
		return t, fmt.Errorf("the token has no hash of the cluster's CA: want sha256:HASH%sID.SECRET, which `mortise token create --role server` creates",
			between)
	}
	if err := bootstraptoken.CheckHash(hash); err != nil {
		return t, fmt.Errorf("parse the hash in the token: %w", err)
	}
	t.Hash = strings.ToLower(hash)
	t.Token, err = bootstraptoken.Parse(secret)
	return t, err
}

// String returns the token as [Parse] reads it.
func (t Token) String() string { return t.Hash + between + t.Token.String() }
