"""Before generation: how many rollouts each prompt gets. numpy only."""
