package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A sweep of bench over ranks, as report reads it.
func TestReportOfBench(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for _, ranks := range []string{"1", "2"} {
		text, code, err := execute("bench", "--ranks", ranks, "--threads", "1", "--seq", "64,128", "--repeats", "3", "--output", "jsonl", "--log-level", "error")
		if code != exitOK {
			t.Fatalf("bench: exit %d, %v", code, err)
		}
		files = append(files, filepath.Join(dir, ranks+".jsonl"))
		if err := os.WriteFile(files[len(files)-1], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page := filepath.Join(dir, "page.html")
	text, code, err := execute(append([]string{"report", "--html", page}, files...)...)
	if code != exitOK {
		t.Fatalf("exit %d, %v", code, err)
	}
	for _, want := range []string{
		"# 8 results of 2 runs\n", "strong scaling: causal, S 64,", "weak scaling: causal, 64 tokens of a row per rank,",
		"sequence scaling: causal, 2 ranks,", "  baseline: 1 rank, S 64, ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text has no %q:\n%s", want, text)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(html), "<!DOCTYPE html>") || !strings.HasSuffix(string(html), "</html>\n") || !strings.Contains(string(html), "<svg") {
		t.Errorf("the page is not whole: %d bytes", len(html))
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("files are left behind: %v", left)
	}
}

func TestReportOfAWrongResult(t *testing.T) {
	const golden = "../report/testdata/first.jsonl"
	text, code, err := execute("report", golden)
	if code != exitWrong || err == nil || err.Error() != "1 result of 9 wrong" || !strings.Contains(text, "strong scaling") {
		t.Errorf("exit %d, %v, %d bytes of text; want the tables and exit %d", code, err, len(text), exitWrong)
	}
}

// A trace of bench, beside results and alone.
func TestReportOfTrace(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "trace.json"), filepath.Join(dir, "page.html")
	if _, code, err := execute("bench", "--ranks", "2", "--threads", "1", "--seq", "128", "--repeats", "2", "--output", "jsonl", "--log-level", "error", "--trace", file); code != exitOK {
		t.Fatalf("bench: exit %d, %v", code, err)
	}
	for _, args := range [][]string{{"--trace", file}, {"--trace", file, "../report/testdata/second.jsonl"}} {
		text, code, err := execute(append([]string{"report", "--html", page}, args...)...)
		if code != exitOK || !strings.Contains(text, "# trace of ") || strings.Count(text, "causal, S 128, ") != 4 {
			t.Errorf("%v: exit %d, %v:\n%s", args, code, err, text)
		}
		html, err := os.ReadFile(page)
		if err != nil || strings.Count(string(html), "what ranks did in causal, S 128, ") != 2 {
			t.Errorf("%v: no timelines, %v", args, err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string]string{
		"half":      string(text[:len(text)/2]),
		"changed":   strings.Replace(string(text), `"bytes":`, `"bytes":1`, 1),
		"not there": "",
	} {
		path := filepath.Join(dir, name)
		if broken != "" {
			if err := os.WriteFile(path, []byte(broken), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if out, code, err := execute("report", "--trace", path); code != exitUsage || err == nil || out != "" {
			t.Errorf("%s: exit %d, %v: %s", name, code, err, out)
		}
	}
	if _, code, _ := execute("report", "--trace", file, "--html", file); code != exitUsage {
		t.Errorf("a page over the trace: exit %d", code)
	}
}

func TestReportUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.jsonl")
	text, err := os.ReadFile("../report/testdata/first.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no file":            {nil, exitUsage, "needs a FILE"},
		"a file that is not": {[]string{dir + "/none"}, exitUsage, "no such file"},
		"another file":       {[]string{"report_test.go"}, exitUsage, "report_test.go"},
		"over its input":     {[]string{file, "--html", file}, exitUsage, "is one of the files that are read"},
		"over a folder":      {[]string{file, "--html", dir}, exitUsage, "is no regular file"},
		"into no folder":     {[]string{file, "--html", dir + "/none/page.html"}, exitUsage, "page.html: no such file"},
	} {
		out, code, err := execute(append([]string{"report"}, c.args...)...)
		if code != c.code || err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("%s: exit %d, %v, %d bytes on stdout; want exit %d and %q", name, code, err, len(out), c.code, c.want)
		}
	}
	if now, err := os.ReadFile(file); err != nil || string(now) != string(text) {
		t.Error("the input has been written to")
	}
}
