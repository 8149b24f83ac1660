package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// readConfig sets flags from a YAML file of NAME: VALUE lines, whose names are those of the
// flags. A list is a flag given several times, or its values with commas between them. Flags
// of the command line stay as they are. What is not understood is refused, with its place.
func readConfig(path string, f *pflag.FlagSet) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return usageError("--config: %w", err)
	}
	var document, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&document); {
	case errors.Is(err, io.EOF):
		return usageError("--config: %s is empty", path)
	case err != nil:
		return usageError("--config: %s: %w", path, err)
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return usageError("--config: %s has more than one document", path)
	}
	top := document.Content[0]
	refuse := func(n *yaml.Node, format string, args ...any) error {
		return usageError("--config: %s:%d:%d: %s", path, n.Line, n.Column, fmt.Sprintf(format, args...))
	}
	if top.Kind != yaml.MappingNode {
		return refuse(top, "want lines of NAME: VALUE")
	}
	seen := map[string]bool{}
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		name := key.Value
		flag := f.Lookup(name)
		switch {
		case key.Kind != yaml.ScalarNode || flag == nil || name == "config" || name == "help":
			return refuse(key, "there is no setting %q; they are named after the flags of bench", name)
		case seen[name]:
			return refuse(key, "%s is there twice", name)
		}
		seen[name] = true
		values, nodes, at := configValues(value)
		if at != nil {
			return refuse(at, "%s is neither a value nor a list of values", name)
		}
		if flag.Changed {
			continue
		}
		if t := flag.Value.Type(); t != "stringArray" && t != lengthsType {
			values, nodes = []string{strings.Join(values, ",")}, []*yaml.Node{value}
		}
		for j, text := range values {
			if text == "true" && nodes[j].Tag == "!!bool" && flag.NoOptDefVal != "" {
				text = flag.NoOptDefVal
			}
			if text == "" {
				return refuse(nodes[j], "%s is empty", name)
			}
			if err := f.Set(name, text); err != nil {
				return refuse(nodes[j], "%v", err)
			}
		}
	}
	return nil
}

// configValues are the texts of a value or list and where they are; at is what is neither.
func configValues(n *yaml.Node) (values []string, nodes []*yaml.Node, at *yaml.Node) {
	nodes = []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		nodes = n.Content
	}
	for _, x := range nodes {
		if x.Kind != yaml.ScalarNode || x.Tag == "!!null" {
			return nil, nil, x
		}
		values = append(values, x.Value)
	}
	if len(nodes) == 0 {
		return nil, nil, n
	}
	return values, nodes, nil
}
