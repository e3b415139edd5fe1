"""Who is to blame for a trial that got stuck or broke: the judge of the evidence, and the rules on top of it."""
