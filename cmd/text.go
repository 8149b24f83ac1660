package cmd

import (
	"fmt"
	"strings"

	"ringattn/segments"
)

// maskText says in words what a mask lets a query see.
func maskText(m segments.Mask, tokens int) string {
	parts := []string{"full"}
	if m.Causal {
		parts[0] = "causal"
	}
	if m.Window > 0 {
		parts = append(parts, fmt.Sprintf("window %d", m.Window))
	}
	docs, padding, images := 0, false, 0
	for _, r := range m.Rows {
		last := -1
		at := 0
		for _, d := range r.Docs {
			last = max(last, d.Doc)
			padding = padding || d.Start > at
			at = d.End
		}
		padding = padding || at < tokens
		docs += last + 1
		images += len(r.Images)
	}
	parts = append(parts, plural(docs, "document"))
	if m.Vision {
		parts = append(parts, plural(images, "image block"))
	}
	if padding {
		parts = append(parts, "padding")
	}
	return strings.Join(parts, ", ")
}
