package cmd

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// The bar counts points, tells how much time is left, and is gone at the end; lines of the
// log do not run into it.
func TestProgressBar(t *testing.T) {
	for _, color := range []bool{true, false} {
		var out bytes.Buffer
		p := &progress{points: 4, log: zerolog.Nop()}
		p.draw(&out, 4e9, color)
		for range 3 {
			p.clear()
			p.step(1e9)
		}
		if _, err := io.WriteString(aboveBar{p, &out}, "a line\n"); err != nil {
			t.Fatal(err)
		}
		before := out.String()
		p.end()
		p.end()
		text := out.String()
		for _, want := range []string{"0/4 points", "3/4 points", " 74% ", "[0s:0s]", "\x1b[2K\ra line\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("color %v: no %q in %q", color, want, text)
			}
		}
		if strings.Contains(text, "\x1b[32m") != color {
			t.Errorf("color %v: %q", color, text)
		}
		if !regexp.MustCompile(`^(\x1b\[2K|\r| )+$`).MatchString(text[len(before):]) {
			t.Errorf("color %v: at the end it writes %q", color, text[len(before):])
		}
	}
}
