package ring

// BindPlans is Bind for plans that did not come from the job.
var BindPlans = bind
