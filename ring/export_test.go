package ring

// BindPlans is Bind for plans that did not come from the job.
var BindPlans = bind

// Halve is how the planner cuts a rank's own chunk.
var Halve = halve
