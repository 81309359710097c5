// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// asV2 converts the paths of custom kinds, as [routes] makes them, to v2. It replaces parameters that the embedded
// document shares with references; named has their names, by their JSON with sorted keys.
func asV2(paths map[string]any, named map[string]string) (map[string]any, error) {
	out := make(map[string]any, len(paths))
	for path, v := range paths {
		item := map[string]any{}
		for key, part := range v.(map[string]any) {
			var err error
			if key == "parameters" {
				item[key], err = parametersV2(part.([]map[string]any), named)
			} else {
				item[key], err = operationV2(part.(map[string]any), named)
			}
			if err != nil {
				return nil, err
			}
		}
		out[path] = item
	}
	return out, nil
}

func operationV2(op map[string]any, named map[string]string) (map[string]any, error) {
	out := map[string]any{
		"consumes": []string{"application/json", "application/yaml"}, "produces": []string{"application/json", "application/yaml"},
		"schemes": []string{"https"},
	}
	for _, key := range []string{"description", "operationId", "tags", "x-kubernetes-action", kindExtension} {
		out[key] = op[key]
	}
	if op["x-kubernetes-action"] == "patch" {
		out["consumes"] = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	}
	responses := map[string]any{}
	for code, r := range op["responses"].(map[string]any) {
		v3 := r.(map[string]any)
		v2 := map[string]any{"description": v3["description"]}
		if c, ok := v3["content"].(map[string]any); ok {
			v2["schema"] = schemaV2(c)
		}
		responses[code] = v2
	}
	out["responses"] = responses

	params, _ := op["parameters"].([]map[string]any)
	params = slices.Clone(params)
	if body, ok := op["requestBody"].(map[string]any); ok {
		p := map[string]any{"name": "body", "in": "body", "schema": schemaV2(body["content"].(map[string]any))}
		if body["required"] == true {
			p["required"] = true
		}
		params = append([]map[string]any{p}, params...)
	}
	if len(params) > 0 {
		var err error
		if out["parameters"], err = parametersV2(params, named); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// schemaV2 returns the schema of all media types of a v3 content, with references under #/definitions/.
func schemaV2(content map[string]any) map[string]any {
	for _, media := range content {
		ref := media.(map[string]any)["schema"].(map[string]any)["$ref"].(string)
		return map[string]any{"$ref": definitionRef + strings.TrimPrefix(ref, schemaRef)}
	}
	return nil
}

func parametersV2(params []map[string]any, named map[string]string) ([]any, error) {
	out := make([]any, len(params))
	for i, v3 := range params {
		v2 := map[string]any{}
		for key, value := range v3 {
			schema, ok := value.(map[string]any)
			if key != "schema" || !ok || schema["$ref"] != nil {
				v2[key] = value
				continue
			}
			for k, v := range schema { // v2 puts the type beside the name
				v2[k] = v
			}
		}
		b, err := json.Marshal(v2)
		if err != nil {
			return nil, fmt.Errorf("encode parameter: %w", err)
		}
		if name, ok := named[string(b)]; ok {
			v2 = map[string]any{"$ref": "#/parameters/" + name}
		}
		out[i] = v2
	}
	return out, nil
}
