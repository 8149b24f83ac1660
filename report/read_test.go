package report

import (
	"strings"
	"testing"
)

// Shards of a job array, and several runs in a file, are one study.
func TestShardsAreMerged(t *testing.T) {
	one := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1}}}.records(t)
	two := run{ranks: 2, timed: []timed{{seq: 2048, seconds: 5}}}.records(t)
	for name, s := range map[string]*Study{"two files": merged(t, one, two), "one file": merged(t, one+two)} {
		if len(s.Runs) != 2 || len(s.Points) != 2 || len(s.Tables) != 1 || len(s.Notes) != 0 {
			t.Errorf("%s: %d runs, %d points, %d tables, notes %q", name, len(s.Runs), len(s.Points), len(s.Tables), s.Notes)
		}
	}
}

func TestPointsThatAreThereTwice(t *testing.T) {
	a := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1}}}
	same := a.records(t)
	s := merged(t, same, same+same)
	if len(s.Points) != 1 || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "2 points there more than once") {
		t.Errorf("%d points, notes %q", len(s.Points), s.Notes)
	}

	b := a
	b.timed = []timed{{seq: 1024, seconds: 1.5}}
	_, err := merge(same, b.records(t))
	if err == nil || !strings.Contains(err.Error(), "file0:4 and file1:4 are the same point (causal, S 1024") {
		t.Errorf("two times of one point: %v", err)
	}
	b.timed[0] = timed{seq: 1024, wrong: 1}
	if _, err := merge(same, b.records(t)); err == nil {
		t.Error("a right and a wrong result of one point are merged")
	}

	// bench's key knows more than the fields, as how many repeats there were.
	a.key, b.key = "k1", "k2"
	b.timed[0] = timed{seq: 1024, seconds: 1.5}
	if s := merged(t, a.records(t), b.records(t)); len(s.Points) != 2 {
		t.Errorf("%d points of two keys", len(s.Points))
	}
	b.key = "k1"
	if _, err := merge(a.records(t), b.records(t)); err == nil {
		t.Error("two times of one key are merged")
	}
	// Another binding is another point, whatever the key.
	c := run{ranks: 2, cpus: "0-7", key: "k1", timed: []timed{{seq: 1024, seconds: 1.5}}}
	if s := merged(t, a.records(t), c.records(t)); len(s.Points) != 2 {
		t.Errorf("%d points of two bindings", len(s.Points))
	}
}

// A file that is cut off anywhere loses the point that it was cut off in, and no other; and a
// run that was appended to it is whole.
func TestFilesThatAreCutOff(t *testing.T) {
	whole := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1}, {seq: 2048, seconds: 5}}}.records(t)
	first := strings.Index(whole, `"seq":2048`)
	first = strings.LastIndex(whole[:first], "\n") + 1 // where the second result begins
	next := run{ranks: 2, timed: []timed{{seq: 4096, seconds: 30}}}.records(t)
	for n := first; n < len(whole)-1; n++ {
		torn := 1
		if n == first {
			torn = 0
		}
		for _, text := range []string{whole[:n], strings.TrimSuffix(whole[:n], "\n") + "\n" + next} {
			s := merged(t, text)
			want := 1
			if strings.HasSuffix(text, next) {
				want = 2
			}
			if len(s.Points) != want || len(s.Notes) != torn {
				t.Fatalf("cut after %d bytes: %d points, want %d; notes %q", n, len(s.Points), want, s.Notes)
			}
		}
	}
}

func TestSamplesWithoutAResultAreNoted(t *testing.T) {
	key := `"seq":1024,"batch":1,"heads":4,"kv_heads":2,"head_dim":64,"dtype":"f32","mask":"causal","pass":"forward","layout":"zigzag","schedule":"ring","ranks":2,"backend":"cpu avx2","transport":"host"`
	sample := `{"type":"sample",` + key + `,"repeat":0,"time_s":[1,3]}` + "\n"
	head := run{ranks: 2}.records(t)
	s := merged(t, head+sample+sample)
	if len(s.Points) != 0 || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "file0:1: not finished, and left out after 2 repeats: causal, S 1024") {
		t.Errorf("%d points, notes %q", len(s.Points), s.Notes)
	}
	full := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 3}}}.records(t)
	s = merged(t, full[:len(head)]+sample+strings.Replace(sample, "[1,3]", "[2,5]", 1)+full[len(head):])
	if got := s.Points[0].RankTimes(); len(got) != 2 || got[0] != 1.5 || got[1] != 4 {
		t.Errorf("medians of ranks are %v, want 1.5 and 4", got)
	}
	if other, ok := s.Points[0].Other(); !ok || other != 2.75 {
		t.Errorf("other is %v s, want 2.75", other)
	}
}

func TestRecordsThatAreRefused(t *testing.T) {
	good := run{ranks: 2, timed: []timed{{seq: 1024, seconds: 1}}}.records(t)
	lines := strings.SplitAfter(good, "\n")
	for name, c := range map[string]struct{ text, want string }{
		"an empty line":     {"\n", "has no record"},
		"another file":      {"hello\n", "has no record"},
		"no meta":           {strings.Join(lines[1:], ""), "file0:1: a rank before any meta"},
		"a rank missing":    {lines[0] + lines[2] + lines[3], "file0:2: rank 1 where rank 0 is due"},
		"a rank too few":    {lines[0] + lines[1] + lines[3], "file0:3: a result of 2 ranks in a run with the records of 1"},
		"torn in between":   {lines[0] + lines[1][:9] + "\n" + lines[2] + lines[3], "file0:3: line 2 is cut off, but is not the last of its run"},
		"two torn lines":    {lines[0] + lines[1] + "{\n{\n", "file0:4: not a line of JSON, and neither"},
		"no time":           {strings.Replace(good, `"median":1`, `"median":0`, 1), "file0:4: a result that is not wrong, and has no time"},
		"no rate":           {strings.Replace(good, `"tflops_per_rank":`, `"other":`, 1), "no tflops_per_rank"},
		"no pass":           {strings.Replace(good, `"pass":"forward"`, `"pass":"both"`, 1), `the pass of a result is "both"`},
		"no length":         {strings.Replace(good, `"seq":1024`, `"seq":0`, 1), "a result without seq"},
		"a field of a word": {strings.Replace(good, `"seq":1024`, `"seq":"x"`, 1), "file0:4: json"},
		"no type":           {lines[0] + "{}\n", "file0:2: a record without a type"},
		"times of others":   {lines[0] + `{"type":"sample","ranks":2,"time_s":[1]}` + "\n", "a sample of 2 ranks with the times of 1"},
	} {
		if _, err := merge(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if s := merged(t, good, ""); len(s.Points) != 1 {
		t.Error("a file of a bench that had nothing to do is not passed over")
	}
	if s := merged(t, good+`{"type":"scaling","of":"a later version"}`+"\n"); len(s.Points) != 1 {
		t.Error("a record of an unknown type is not passed over")
	}
}
