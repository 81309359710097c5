// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	externaljwt "k8s.io/externaljwt/apis/v1"
)

// signer signs the tokens of service accounts. Its key lives as long as the process.
type signer struct {
	externaljwt.UnimplementedExternalJWTSignerServer
	key *ecdsa.PrivateKey
}

// serveSigner serves externaljwt v1 on a socket in the background.
func serveSigner(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	externaljwt.RegisterExternalJWTSignerServer(s, &signer{key: key})
	go func() { fail(s.Serve(l)) }()
	return nil
}

// Metadata says how long tokens may live.
func (s *signer) Metadata(context.Context, *externaljwt.MetadataRequest) (*externaljwt.MetadataResponse, error) {
	return &externaljwt.MetadataResponse{MaxTokenExpirationSeconds: 24 * 3600}, nil
}

// FetchKeys returns the public keys that verify tokens.
func (s *signer) FetchKeys(context.Context, *externaljwt.FetchKeysRequest) (*externaljwt.FetchKeysResponse, error) {
	der, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		return nil, err
	}
	return &externaljwt.FetchKeysResponse{Keys: []*externaljwt.Key{{KeyId: "example", Key: der}}, DataTimestamp: timestamppb.Now(),
		RefreshHintSeconds: 60}, nil
}

// Sign signs the claims, which come in base64url, and answers the header and the signature in the same form.
func (s *signer) Sign(_ context.Context, r *externaljwt.SignJWTRequest) (*externaljwt.SignJWTResponse, error) {
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"example","typ":"JWT"}`))
	digest := sha256.Sum256([]byte(header + "." + r.Claims))
	rr, ss, err := ecdsa.Sign(rand.Reader, s.key, digest[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 2*crypto.SHA256.Size()) // r and s, 32 bytes each
	rr.FillBytes(signature[:32])
	ss.FillBytes(signature[32:])
	return &externaljwt.SignJWTResponse{Header: header, Signature: base64.RawURLEncoding.EncodeToString(signature)}, nil
}
