package ring

import "fmt"

// Nodes is the node of each rank, numbered from 0; nil: all ranks are on one.
type Nodes []int

// NodesOf are nodes of so many ranks each, in order; the last may have fewer.
func NodesOf(ranks, perNode int) Nodes {
	n := make(Nodes, ranks)
	for rank := range n {
		n[rank] = rank / perNode
	}
	return n
}

// Alike reports whether there are several nodes, of equally many ranks.
func (n Nodes) Alike() bool {
	if len(n) == 0 {
		return false
	}
	g, err := newGrid(n)
	return err == nil && g.size < len(n)
}

// Groups are the nodes of groups of so many ranks in a row, each of which must be on one.
func (n Nodes) Groups(members int) (Nodes, error) {
	var of Nodes
	for first := 0; first+members <= len(n); first += members {
		for rank := first; rank < first+members; rank++ {
			if n[rank] != n[first] {
				return nil, fmt.Errorf("ring: ranks %d and %d are of one group of %d, and on nodes %d and %d: two levels need each group on one node",
					first, rank, members, n[first], n[rank])
			}
		}
		of = append(of, n[first])
	}
	return of, nil
}

// grid is where the ranks stand: on nodes of equally many.
type grid struct {
	size  int   // ranks of a node
	ranks []int // node by node
	place []int // of a rank, in ranks
}

// oneNode is the grid of ranks that are all alike.
func oneNode(ranks int) grid {
	g, err := newGrid(make(Nodes, ranks))
	if err != nil {
		panic(err)
	}
	return g
}

func newGrid(nodes Nodes) (grid, error) {
	var at [][]int // ranks of each node
	for rank, n := range nodes {
		for len(at) <= n {
			at = append(at, nil)
		}
		at[n] = append(at[n], rank)
	}
	g := grid{place: make([]int, len(nodes))}
	for n, ranks := range at {
		if len(ranks) != len(at[0]) {
			return grid{}, fmt.Errorf("ring: node 0 has %d ranks and node %d has %d: two levels need as many on each", len(at[0]), n, len(ranks))
		}
		for _, rank := range ranks {
			g.place[rank] = len(g.ranks)
			g.ranks = append(g.ranks, rank)
		}
	}
	g.size = len(at[0])
	return g, nil
}

// at is the rank at a distance from another: distances go round a node first, then to
// the rank of the same place on the next node, and round that one.
func (g *grid) at(rank, distance int) int {
	p, nodes := g.place[rank], len(g.ranks)/g.size
	node, local := (p/g.size+distance/g.size)%nodes, (p+distance)%g.size
	return g.ranks[node*g.size+local]
}

// from is the rank that another is at a distance from.
func (g *grid) from(rank, distance int) int {
	p, nodes := g.place[rank], len(g.ranks)/g.size
	node, local := (p/g.size-distance/g.size+nodes)%nodes, (p+len(g.ranks)-distance)%g.size
	return g.ranks[node*g.size+local]
}

// near reports whether two ranks are on one node.
func (g *grid) near(a, b int) bool { return g.place[a]/g.size == g.place[b]/g.size }
